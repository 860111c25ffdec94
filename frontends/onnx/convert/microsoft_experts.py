"""com.microsoft: mixtures of experts. One expert after the other multiplies all tokens, unless no token has chosen it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.types import f32
from ingot.compiler.ops.contraction import contract
from ingot.compiler.ops.movement import Iota
from ingot.compiler.ops.ordering import TopK
from ingot.compiler.ops.packed import Unpack
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.microsoft import fast_gelu
from ingot.frontends.onnx.convert.microsoft_packed import codes_of, words_of
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")

Layer = tuple[Callable[..., Any], list[Any]]  # product(x, *parts of one expert); those parts of all experts


def mixed(op: Call, x: Any, router: Any, first: Layer, second: Layer, third: Layer | None, chosen: Any = None) -> Any:
    """The sum over the experts that each token chooses of what they make of it, weighed by how strongly it does."""
    _check_tokens(op, x)
    width, experts = x.shape[-1], router.shape[1]
    tokens = x.reshape(symbolic.product(x.shape[:-1]), width).cast(f32)
    same = symbolic.equal(router.shape[0], tokens.shape[0])
    op.require(same is not False, Kind.BAD_SHAPE, f"{router.type!r} are no choices of {tokens.shape[0]} tokens")
    gates = _gates(op, router.cast(f32), None if chosen is None else chosen.cast(f32)).swapaxes(0, 1)
    streams = [gates, *first[1], *second[1], *([] if third is None else third[1])]
    for part in streams[1:]:
        op.require(part.shape[0] == experts, Kind.BAD_SHAPE, f"{part.type!r} is not for {experts} experts")
    ends = np.cumsum([1, len(first[1]), len(second[1])])

    def step(total: Any, parts: Sequence[Any]) -> tuple[Any, None]:
        gate = parts[0]

        def added(total: Any) -> Any:
            hidden = first[0](tokens, *parts[ends[0] : ends[1]])
            linear = None if third is None else third[0](tokens, *parts[ends[2] :])
            made = second[0](_activated(op, hidden, linear), *parts[ends[1] : ends[2]])
            weight = gate.expand_dims(1)
            return total + (weight > 0.0).where(weight * made, 0.0)

        return functions.cond((gate > 0.0).reduce("any", (0,)), added, lambda total: total, total), None

    result, _ = functions.scan(step, tokens.full(tokens.shape, 0.0), streams)
    return result.cast(x.dtype).reshape(*x.shape)


def _check_tokens(op: Call, x: Any) -> None:
    op.require(x.rank in (2, 3), Kind.BAD_SHAPE, f"tokens are {x.type!r}; they have 2 or 3 axes")


def _gates(op: Call, router: Any, chosen: Any) -> Any:
    """[tokens, experts]: how strongly each expert counts, 0 for those that are not among the k best."""
    best = op.get("k", 1)
    experts = router.shape[1]
    op.require(isinstance(experts, int), Kind.UNSUPPORTED, f"the symbolic number {experts} of experts")
    op.require(0 < best <= experts, Kind.BAD_ATTRIBUTE, f"the best {best} of {experts} experts")
    op.require(not op.get("use_sparse_mixer", 0), Kind.UNSUPPORTED, "the sparse mixer")
    _, places = router.apply(TopK(best, 1))
    number = Tensor(op.trace, op.trace.emit(Iota((experts,), 0)))
    taken = (places.expand_dims(2) == number).reduce("any", (1,))
    weights = taken.where(router.softmax(-1) if chosen is None else chosen, 0.0)
    if op.get("normalize_routing_weights", 0):
        weights = weights / weights.reduce("sum", (1,), True)
    return weights


def _activated(op: Call, x: Any, linear: Any) -> Any:
    """Of swiglu, x is both parts, one after the other or in turns, where there is no other."""
    name = op.choice("activation_type", "relu", ACTIVATIONS)
    if name == "swiglu":
        fusion, half = op.get("swiglu_fusion", 0), x.shape[-1] // 2
        op.require(fusion in (0, 1, 2), Kind.BAD_ATTRIBUTE, f"swiglu_fusion is {fusion}; it is 0, 1 or 2")
        op.require(fusion or linear is not None, Kind.INPUT_COUNT, "swiglu has no third layer")
        op.require(not fusion or linear is None, Kind.UNSUPPORTED, "a third layer beside that in the first")
        other: Any = linear
        if fusion == 1:
            pairs = x.reshape(*x.shape[:-1], half, 2)
            x, other = pairs[..., 0], pairs[..., 1]
        elif fusion == 2:
            x, other = x[..., :half], x[..., half:]
        if op.has("swiglu_limit"):
            limit = op.get("swiglu_limit")
            x, other = x.binary("minimum", limit), other.clip(-limit, limit)
        return x * (x * op.get("activation_alpha", 1.0)).sigmoid() * (other + op.get("activation_beta", 0.0))
    match name:
        case "relu":
            x = x.relu()
        case "gelu":
            x = fast_gelu(op, x)  # as ONNX Runtime computes it
        case "silu":
            x = x * x.sigmoid()
    return x if linear is None else x * linear


def _with_bias(product: Callable[..., Any], parts: list[Any], bias: Tensor | None) -> Layer:
    if bias is None:
        return product, parts
    return (lambda x, *given: product(x, *given[:-1]) + given[-1].cast(f32)), [*parts, bias]


def _dense(weight: Tensor, bias: Tensor | None) -> Layer:
    return _with_bias(lambda x, w: contract(x, "tk", w.cast(f32), "nk", "tn"), [weight], bias)


@onnx_op("MoE", domain=MICROSOFT, ranks={1: 2, 2: 3, 3: 2, 4: 3, 5: 2, 6: 3, 7: 2})
def mixture_of_experts(
    op: Call,
    x: Tensor,
    router: Tensor,
    first: Tensor,
    first_bias: Tensor | None,
    second: Tensor,
    second_bias: Tensor | None = None,
    third: Tensor | None = None,
    third_bias: Tensor | None = None,
) -> Any:
    more = None if third is None else _dense(third, third_bias)
    return mixed(op, x, router, _dense(first, first_bias), _dense(second, second_bias), more)


@onnx_op("QMoE", domain=MICROSOFT, known=(2, 5, 8, 11, 12, 13), ranks={1: 2, 4: 2, 7: 2, 10: 2, 14: 2})
def quantized_mixture_of_experts(
    op: Call,
    x: Tensor,
    router: Tensor,
    first: np.ndarray,
    first_scales: Tensor | None,
    first_bias: Tensor | None,
    second: np.ndarray,
    second_scales: Tensor | None = None,
    second_bias: Tensor | None = None,
    third: np.ndarray | None = None,
    third_scales: Tensor | None = None,
    third_bias: Tensor | None = None,
    first_zeros: np.ndarray | None = None,
    second_zeros: np.ndarray | None = None,
    third_zeros: np.ndarray | None = None,
    chosen: Tensor | None = None,
) -> Any:
    kind = op.get("quant_type", "int")
    op.require(kind == "int", Kind.UNSUPPORTED, f"weights of the type {kind!r}")
    op.require(op.get("weights_prepacked", -1) <= 0, Kind.UNSUPPORTED, "weights in an order of a device")
    _check_tokens(op, x)
    width = x.shape[-1]
    one = _packed(op, 1, first, first_scales, first_zeros, first_bias, width)
    more = None if third is None else _packed(op, 3, third, third_scales, third_zeros, third_bias, width)
    # the second layer reads as many columns as its scales and codes say
    two = _packed(op, 2, second, second_scales, second_zeros, second_bias, None)
    return mixed(op, x, router, one, two, more, chosen)


def _packed(
    op: Call, number: int, data: np.ndarray, scales: Tensor | None, zeros: np.ndarray | None, bias: Tensor | None, width: Any
) -> Layer:
    """A layer of codes [experts, rows, columns], with a scale for each row or each block of one."""
    bits = op.get(f"fc{number}_expert_weight_bits", op.get("expert_weight_bits", 4))
    op.require(bits in (2, 4, 8), Kind.BAD_ATTRIBUTE, f"weights of {bits} bits; they have 2, 4 or 8")
    op.require(data.ndim == 3 and data.dtype == np.uint8, Kind.BAD_SHAPE, f"weights are {data.dtype}{list(data.shape)}")
    experts, rows, size = data.shape
    columns = size * 8 // bits
    op.require(width is None or symbolic.equal(width, columns) is not False, Kind.BAD_SHAPE, f"{columns} weights for {width} elements")
    op.require(scales is not None and scales.rank in (2, 3), Kind.INPUT_COUNT, f"layer {number} has no scales, or of another form")
    assert scales is not None
    block = op.get("block_size", 0) or columns
    blocks = columns // block if block > 0 else 0
    factors = scales if scales.rank == 3 else scales.expand_dims(2)
    op.require(blocks * block == columns, Kind.BAD_ATTRIBUTE, f"blocks of {block} of {columns} weights")
    op.require(factors.shape == (experts, rows, blocks), Kind.BAD_SHAPE, f"the scales are {scales.type!r}")
    op.require(block % (32 // bits) == 0, Kind.UNSUPPORTED, f"blocks of {block} codes of {bits} bits, which are no whole words")
    unpack = Unpack(columns, bits, block, 1 << (bits - 1) if zeros is None else None)
    words = np.stack([words_of(codes_of(expert, bits, columns), unpack) for expert in data]) if experts else np.zeros((0, 1, rows), np.uint32)
    parts: list[Any] = [op.constant(words), factors.cast(f32).swapaxes(1, 2)]
    if zeros is not None:
        # without blocks, neighbouring rows share a byte
        shape = (experts, rows, -(-blocks * bits // 8)) if scales.rank == 3 else (experts, -(-rows * bits // 8))
        op.require(zeros.shape == shape and zeros.dtype == np.uint8, Kind.BAD_SHAPE, f"the zero points are {zeros.dtype}{list(zeros.shape)}")
        points = codes_of(zeros, bits, blocks if scales.rank == 3 else rows).reshape(experts, rows, blocks)
        parts.append(op.constant(np.ascontiguousarray(points.swapaxes(1, 2).astype(np.float32))))
    return _with_bias(lambda t, *given: contract(t, "tk", given[0].apply(unpack, *given[1:]), "kn", "tn"), parts, bias)
