"""What ONNX's own description of an op says about a node: how many inputs and outputs, which attributes, which types.

Checked before any converter or host function sees the node, so that none of them has to. A value that only the running
program knows has no type yet and is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, defs

from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.onnx.elements import ELEMENTS, Element
from ingot.frontends.onnx.functions import schema_of
from ingot.frontends.onnx.problems import Kind, ProblemError
from ingot.frontends.onnx.values import Coded, Dims, Held, Value, element_of_value

UNLIMITED = 1 << 30  # inputs of an op that takes any number

_OPTIONS = defs.OpSchema.FormalParameterOption


@cache
def description_of(domain: str, name: str, version: int) -> Any:
    """The schema of an op; of its first version for an op that a model uses before it was in the standard, as optimisers
    do. None: ONNX does not describe it."""
    found = schema_of(domain, name, version)
    if found is not None or version < 1:
        return found
    return _first_versions().get((domain, name))


@cache
def _first_versions() -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for schema in defs.get_all_schemas_with_history():
        known = found.get((schema.domain, schema.name))
        if known is None or schema.since_version < known.since_version:
            found[schema.domain, schema.name] = schema
    return found


# --- form -------------------------------------------------------------------------------------------


def form_problems(node: NodeProto, schema: Any) -> Iterator[ProblemError]:
    """What is wrong with a node whatever its inputs are."""
    yield from _count_problems(node, schema)
    given = {a.name: a for a in node.attribute}
    if len(given) != len(node.attribute):
        yield ProblemError(Kind.BAD_ATTRIBUTE, f"{node.op_type} has an attribute twice")
    for name, attribute in given.items():
        entry = schema.attributes.get(name)
        if entry is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            yield ProblemError(Kind.BAD_ATTRIBUTE, f"{node.op_type} has no attribute {name!r}; it has {known}")
        elif not attribute.ref_attr_name and int(attribute.type) != int(entry.type.value):
            found = AttributeProto.AttributeType.Name(attribute.type)
            yield ProblemError(Kind.BAD_ATTRIBUTE, f"{name!r} of {node.op_type} is a {found}, not {entry.type.name}")
    for name, entry in schema.attributes.items():
        if entry.required and name not in given:
            yield ProblemError(Kind.BAD_ATTRIBUTE, f"{node.op_type} wants the attribute {name!r}")


_I, _F, _S = AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING
_UNDESCRIBED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("accuracy_level", "align_corners", "axis", "bits", "block_size", "ceil_mode", "channels_last", "chunk_size", "count_include_pad",
         "dilation", "dim", "do_rotary", "expert_weight_bits", "fc1_expert_weight_bits", "fc2_expert_weight_bits",
         "fc3_expert_weight_bits", "gather_axis", "group", "groups", "hidden_size", "input_forget", "interleaved", "is_bidirectional",
         "is_packed_batching", "K", "k", "keepdims", "kv_num_heads", "layout", "local_window_size", "max_distance", "mrope_layout", "N",
         "ndim", "ngram_size", "normalize_routing_weights", "normalized", "num_branches", "num_heads", "onesided", "output_dtype",
         "output_qk", "past_present_share_buffer", "positive", "precision", "q_num_heads", "quantize_axis", "rotary_embedding_dim",
         "rotary_interleaved", "saturate", "seed", "signal_ndim", "size", "sparse_block_size", "state_window", "step", "storage_order",
         "swiglu_fusion", "transA", "transB", "transBatchA", "transBatchB", "unidirectional", "upper", "use_sparse_mixer"), (_I,),
    ),
    "MatMulBnb4.quant_type": (_I,),
    **dict.fromkeys(("GroupNorm.activation", "SkipGroupNorm.activation"), (_I,)),
    **dict.fromkeys(
        ("alpha", "beta", "clip", "epsilon", "extrapolation_value", "mask_filter_value", "scale", "softcap", "swiglu_limit"), (_F,)
    ),
    **dict.fromkeys(("activation_alpha", "activation_beta"), (_F, AttributeProto.FLOATS)),
    **dict.fromkeys(
        ("activation", "activation_type", "auto_pad", "direction", "metric", "mode", "padding_mode", "quant_type", "update_rule"), (_S,)
    ),
    **dict.fromkeys(
        ("axes", "dilations", "kernel_shape", "mrope_section", "output_padding", "output_shape", "pads", "qkv_hidden_sizes", "strides"),
        (AttributeProto.INTS,),
    ),
    "activation_params": (AttributeProto.FLOATS,),
    "activations": (AttributeProto.STRINGS,),
}  # fmt: skip


def undescribed_problems(node: NodeProto) -> Iterator[ProblemError]:
    """Attributes of the wrong type, of an op that ONNX does not describe: a name means the same in all of them,
    but for those with the name of an op before it."""
    for attribute in node.attribute:
        kinds = _UNDESCRIBED.get(f"{node.op_type}.{attribute.name}", _UNDESCRIBED.get(attribute.name))
        if kinds is not None and attribute.type not in kinds and not attribute.ref_attr_name:
            wanted, found = (AttributeProto.AttributeType.Name(k) for k in (kinds[0], attribute.type))
            yield ProblemError(Kind.BAD_ATTRIBUTE, f"{attribute.name!r} of {node.op_type} is a {found}, not {wanted}")


def _count_problems(node: NodeProto, schema: Any) -> Iterator[ProblemError]:
    count = len(node.input)
    if not schema.min_input <= count <= schema.max_input:
        most = f"to {schema.max_input}" if schema.max_input < UNLIMITED else "or more"
        yield ProblemError(Kind.INPUT_COUNT, f"{node.op_type} has {count} inputs; it takes {schema.min_input} {most}")
    for place, name in enumerate(node.input):
        if not name and place < schema.max_input and _is_required(parameter_of(schema, place)):
            yield ProblemError(
                Kind.INPUT_COUNT, f"{node.op_type} is given no value for a required input, number {place}"
            )
    if len(node.output) > schema.max_output:
        yield ProblemError(
            Kind.INPUT_COUNT, f"{node.op_type} has {len(node.output)} outputs; it makes {schema.max_output}"
        )


def parameter_of(schema: Any, place: int) -> Any:
    """The formal input of a place; the last one may stand for many."""
    return schema.inputs[min(place, len(schema.inputs) - 1)]


def _is_required(parameter: Any) -> bool:
    """Whether an input cannot be left out: one alone, or one of several."""
    return parameter.option in (_OPTIONS.Single, _OPTIONS.Variadic)


# --- types ------------------------------------------------------------------------------------------

_CLASSES = {"f": "floats", "i": "integers", "u": "integers", "b": "bools", "O": "strings", "c": "complex numbers"}


def check_kinds(node: NodeProto, schema: Any, values: Sequence[Value]) -> None:
    """ProblemError when nothing stands where a value belongs (a call of a function may leave out what its body needs), or a
    sequence where a tensor does, or the other way round."""
    if len(values) < schema.min_input:
        raise ProblemError(Kind.INPUT_COUNT, f"{node.op_type} has {len(values)} inputs; it takes {schema.min_input} or more")
    for place, value in enumerate(values[: schema.max_input]):
        if value is None and _is_required(parameter_of(schema, place)):
            raise ProblemError(
                Kind.INPUT_COUNT, f"{node.op_type} is given no value for a required input, number {place}"
            )
        types = parameter_of(schema, place).types
        if isinstance(value, Held) and isinstance(value.value, list):
            if not any("seq(" in t for t in types):
                raise ProblemError(Kind.ELEMENT_TYPE, f"{node.op_type}: input {place} is a sequence; it takes a tensor")
        elif _is_tensor(value) and not any("tensor(" in t and "seq(" not in t and "map(" not in t for t in types):
            raise ProblemError(Kind.ELEMENT_TYPE, f"{node.op_type}: input {place} is a tensor; it takes a sequence or map")


def check_elements(node: NodeProto, schema: Any, values: Sequence[Value]) -> None:
    """ProblemError when an input has elements that the op is not defined for, or two inputs differ that must be the same.
    For a node that waits: its converter, which knows more element types than the standard lists, has not seen it yet.
    So it may be of any width that the standard has one of."""
    shared: dict[str, Element] = {}
    for place, value in enumerate(values[: schema.max_input]):
        if not _is_tensor(value):
            continue
        parameter, found = parameter_of(schema, place), element_of_value(value)
        allowed = _classes(frozenset(parameter.types))
        if _class_of(found) not in allowed:
            said = f"{node.op_type}: input {place} has {_said(found)} values; it takes {', '.join(sorted(allowed))}"
            raise ProblemError(Kind.ELEMENT_TYPE, said)
        first = shared.setdefault(parameter.type_str, found)
        if first is not found and _is_shared(parameter):
            said = f"{node.op_type}: its inputs have the types {_said(first)} and {_said(found)}"
            raise ProblemError(Kind.ELEMENT_TYPE, said)


def _is_tensor(value: Value) -> bool:
    return isinstance(value, Tensor | np.ndarray | Coded | Dims)


def _is_shared(parameter: Any) -> bool:
    """Whether all inputs of this parameter's type variable have one type."""
    return not parameter.type_str.endswith(")") and (parameter.option != _OPTIONS.Variadic or parameter.is_homogeneous)


@cache
def _classes(types: frozenset[str]) -> frozenset[str]:
    """What the elements of these types are."""
    names = {t[t.index("tensor(") + 7 :].split(")")[0].upper() for t in types if "tensor(" in t}
    return frozenset(_class_of(kind) for kind in ELEMENTS.values() if kind.name in names)


def _class_of(kind: Element) -> str:
    return "floats" if kind.is_coded_float else "integers" if kind.is_coded else _CLASSES.get(kind.numpy.kind, "floats")


def _said(kind: Element) -> str:
    return str(kind.storage) if kind.storage is not None and not kind.is_coded else repr(kind)
