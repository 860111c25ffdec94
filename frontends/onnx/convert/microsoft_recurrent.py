"""com.microsoft: layers of models that keep a state instead of all keys: linear attention, causal convolutions, gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ops.movement import concat
from ingot.frontends.dsl import functions
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.convert.attention import heads_of
from ingot.frontends.onnx.problems import Kind
from ingot.frontends.onnx.registry import MICROSOFT, onnx_op

# --- gates and norms --------------------------------------------------------------------------------


@onnx_op("GatedAdd", domain=MICROSOFT)
def gated_add(op: Call, x: Tensor, y: Tensor, gate: Tensor) -> Any:
    return x + y * gate


@onnx_op("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(op: Call, x: Tensor, scale: Tensor | None = None) -> Any:
    factor = op.get("alpha", 1.0) if scale is None else scale.cast(x.dtype.compute).reshape(())
    scaled = (x.cast(x.dtype.compute) * factor).cast(x.dtype)
    return scaled * scaled.sigmoid()


def _normal(wide: Any, epsilon: float) -> Any:
    return wide * ((wide * wide).reduce("mean", (wide.rank - 1,), True) + epsilon).rsqrt()


@onnx_op("GatedRMSNorm", domain=MICROSOFT, ranks={1: 1}, least_ranks={0: 1})
def gated_rms_norm(op: Call, x: Tensor, scale: Tensor, gate: Tensor) -> Any:
    """Over groups of the last axis that are as long as the scale."""
    how = op.choice("activation", "silu", ("silu", "swish", "sigmoid"))
    width = scale.shape[0]
    op.require(width != 0, Kind.BAD_SHAPE, f"the scale is {scale.type!r}")
    op.require(x.shape == gate.shape, Kind.BAD_SHAPE, f"the gate is {gate.type!r}, not {x.type!r}")
    wide, opened = x.cast(x.dtype.compute), gate.cast(x.dtype.compute)
    groups = wide.reshape(*x.shape[:-1], x.shape[-1] // width, width)
    y = (_normal(groups, op.get("epsilon", 1e-5)) * scale.cast(wide.dtype)).reshape(*x.shape)
    return (y * (opened.sigmoid() if how == "sigmoid" else opened * opened.sigmoid())).cast(x.dtype)


@onnx_op("BranchwiseRMSNorm", domain=MICROSOFT, least_ranks={0: 1})
def branchwise_rms_norm(op: Call, x: Tensor, scale: Tensor | None = None) -> Any:
    """The last axis, or each of so many parts of it, has a norm of its own."""
    branches = op.get("num_branches", 0)
    op.require(branches >= 0, Kind.BAD_ATTRIBUTE, f"num_branches is {branches}")
    wide = x.cast(x.dtype.compute)
    if branches:
        wide = wide.reshape(*x.shape[:-1], branches, x.shape[-1] // branches)
    y = _normal(wide, op.get("epsilon", 1e-5))
    if scale is not None:
        factor = scale.cast(wide.dtype)
        if factor.rank == 1 and symbolic.equal(factor.shape[0], wide.shape[-1]) is not True:
            op.require(wide.rank > 1, Kind.BAD_SHAPE, f"{scale.type!r} does not fit {x.type!r}")
            factor = factor.reshape(*wide.shape[-2:])
        y = y * factor
    return y.cast(x.dtype).reshape(*x.shape)


# --- states -----------------------------------------------------------------------------------------


@onnx_op("CausalConvWithState", domain=MICROSOFT, least_ranks={0: 3}, ranks={1: 3, 2: 1})
def causal_convolution(
    op: Call, x: Tensor, weight: Tensor, bias: Tensor | None = None, past: Tensor | None = None
) -> Any:
    """Each channel by itself along time, which begins with the state: as many elements as come before the last tap."""
    op.require(op.get("ndim", 1) == 1, Kind.UNSUPPORTED, "a convolution over several axes")
    op.require(not op.get("state_window", 0), Kind.UNSUPPORTED, "several states")
    how = op.choice("activation", "none", ("none", "silu", "swish"))
    step, last, taps = op.get("dilation", 1), bool(op.get("channels_last", 0)), weight.shape[2]
    op.require(step > 0, Kind.BAD_ATTRIBUTE, f"dilation is {step}")
    op.require(last or x.rank == 3, Kind.BAD_SHAPE, f"{x.type!r} has no 3 axes")
    op.require(isinstance(taps, int), Kind.UNSUPPORTED, f"the symbolic number {taps} of taps")
    assert isinstance(taps, int)
    op.require(taps > 0, Kind.BAD_SHAPE, f"the weight {weight.type!r} has no taps")
    op.bounded(taps, "the number of taps")
    inner = x.shape[2:] if last else (x.shape[1],)
    channels = symbolic.product(inner)
    op.require(symbolic.equal(weight.shape[0], channels) is not False, Kind.BAD_SHAPE, f"{weight.type!r} is not for {channels} channels")
    op.require(symbolic.equal(weight.shape[1], 1) is not False, Kind.BAD_SHAPE, f"{weight.type!r} is not for single channels")
    # [batch, time, channels] or [batch, channels, time]
    data = x.reshape(*x.shape[:2], channels) if last else x
    time, before = (1, 2)[not last], (taps - 1) * step
    shape = (x.shape[0], before, channels) if last else (x.shape[0], channels, before)
    whole = data
    if before:
        state = data.full(shape, 0) if past is None else past.reshape(*shape)
        whole = concat([state, data], time)
    length: Dim = data.shape[time]

    def part(start: int) -> Any:
        return whole[:, start : start + length] if last else whole[:, :, start : start + length]

    def along(parameter: Any) -> Any:
        return parameter if last else parameter.expand_dims(1)

    wide = x.dtype.compute
    total: Any = None
    for tap in range(taps):
        term = part(tap * step).cast(wide) * along(weight[:, 0, tap].cast(wide))
        total = term if total is None else total + term
    total = total if bias is None else total + along(bias.cast(wide))
    y = (total if how == "none" else total * total.sigmoid()).cast(x.dtype)
    state = whole[:, length:] if last else whole[:, :, length:]
    return (y.reshape(*x.shape), state.reshape(x.shape[0], before, *inner)) if last else (y, state)


RULES = ("linear", "gated", "delta", "gated_delta")


@onnx_op("LinearAttention", domain=MICROSOFT, ranks={0: 3, 1: 3, 2: 3, 3: 4, 4: 3, 5: 3})
def linear_attention(
    op: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Tensor | None = None,
    decay: Tensor | None = None,
    rate: Tensor | None = None,
) -> Any:
    """A state [batch, heads, key size, value size] to which each token adds key times value, and of which its query reads."""
    op.require(not op.get("state_window", 0), Kind.UNSUPPORTED, "several states")
    rule = op.choice("update_rule", "gated_delta", RULES)
    asking, kept = op.get("q_num_heads"), op.get("kv_num_heads")
    op.require(min(asking, kept) > 0 and max(asking, kept) % min(asking, kept) == 0, Kind.BAD_ATTRIBUTE, f"{asking} heads of {kept}")
    op.require((decay is not None) or "gated" not in rule, Kind.INPUT_COUNT, f"no decay for the rule {rule!r}")
    op.require((rate is not None) or "delta" not in rule, Kind.INPUT_COUNT, f"no rate for the rule {rule!r}")
    wide = query.dtype.compute
    q, k, v = (heads_of(x.cast(wide), n).transpose((2, 0, 1, 3)) for x, n in ((query, asking), (key, kept), (value, kept)))
    length, batch, size = q.shape[0], q.shape[1], q.shape[3]
    op.require(isinstance(size, int), Kind.UNSUPPORTED, f"heads of the symbolic size {size}")
    scale = op.get("scale", 0.0) or size**-0.5
    streams = [q, k, v]
    if "gated" in rule and decay is not None:
        # a number for each head, or one for each of its keys
        per = 1 if symbolic.equal(decay.shape[2], kept) is True else decay.shape[2] // kept
        streams.append(decay.cast(wide).reshape(batch, length, kept, per).transpose((1, 0, 2, 3)).exp())
    if "delta" in rule and rate is not None:
        streams.append(rate.cast(wide).reshape(batch, length, rate.shape[2], 1).transpose((1, 0, 2, 3)))
    shape = (batch, kept, k.shape[3], v.shape[3])
    start = q.full(shape, 0) if past is None else past.cast(wide)
    op.require(start.rank == 4 and all(symbolic.equal(a, b) is not False for a, b in zip(start.shape, shape, strict=True)),
               Kind.BAD_SHAPE, f"the state is {start.type!r}, not {list(shape)}")  # fmt: skip
    heads = max(asking, kept)

    def shared(x: Any, count: int) -> Any:
        """What `count` heads have, for all heads: neighbours share it."""
        if count == heads:
            return x
        each = x.expand_dims(2).broadcast_to((x.shape[0], count, heads // count, *x.shape[2:]))
        return each.reshape(x.shape[0], heads, *x.shape[2:])

    def step(state: Any, parts: Sequence[Any]) -> tuple[Any, Any]:
        asked, known, new = parts[:3]
        if "gated" in rule:
            state = state * parts[3].expand_dims(3)
        if "delta" in rule:
            new = parts[-1] * (new - (state * known.expand_dims(3)).reduce("sum", (2,)))
        state = state + known.expand_dims(3) * new.expand_dims(2)
        answer = (shared(state, kept) * shared(asked, asking).expand_dims(3)).reduce("sum", (2,)) * scale
        return state, answer

    final, answers = functions.scan(step, start, streams)
    y = answers.transpose((1, 0, 2, 3)).reshape(batch, length, heads * v.shape[3])
    return y.cast(query.dtype), final.cast(query.dtype if past is None else past.dtype)
