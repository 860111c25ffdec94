"""An imported ONNX model as a Module: call it on tensors, differentiate it, train it, compile it.

Its parameters are the float initializers that nodes compute with; other initializers are constants. Weights are read
from the file when they are used (external data stays mapped).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from onnx import NodeProto, TypeProto

from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.symbolic import Dim, Symbol
from ingot.compiler.ir.types import TensorType, dtype_of, type_of
from ingot.compiler.options import Options
from ingot.frontends.dsl.module import Module
from ingot.frontends.dsl.tensor import Tensor
from ingot.frontends.dsl.trace import Trace, as_type
from ingot.frontends.onnx import convert, hosted
from ingot.frontends.onnx.call import Call
from ingot.frontends.onnx.elements import element, element_of_dtype, is_plain
from ingot.frontends.onnx.executable import compile_staged, examine_staged
from ingot.frontends.onnx.importer import Importer, Item
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem, ProblemError
from ingot.frontends.onnx.scope import Scope, Weight
from ingot.frontends.onnx.source import UNKNOWN_EXTENT, Model, subgraphs
from ingot.frontends.onnx.staged import Staged
from ingot.frontends.onnx.stages import Given
from ingot.frontends.onnx.values import Value

assert convert.FAMILIES
assert hosted.SUBJECTS

# Inputs that are settings rather than weights: (op, input number)
_SETTINGS = frozenset(
    [("Resize", 1), ("Resize", 2), ("Upsample", 1), ("Clip", 1), ("Clip", 2), ("Pad", 2), ("OneHot", 2), ("Range", 0),
     ("Range", 1), ("Range", 2), ("Dropout", 1), ("NonMaxSuppression", 3), ("NonMaxSuppression", 4),
     ("QuantizeLinear", 1), ("DequantizeLinear", 1), ("QLinearConv", 1), ("QLinearConv", 4), ("QLinearConv", 6),
     ("QLinearMatMul", 1), ("QLinearMatMul", 4), ("QLinearMatMul", 6), ("MelWeightMatrix", 3), ("MelWeightMatrix", 4)]
)  # fmt: skip


class _File:
    """What of a model file is not a parameter. Opaque to Module, which looks for arrays in its attributes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.staged: dict[Any, Staged] = {}

    @cached_property
    def items(self) -> list[Item]:
        return Importer(self.model).items(self.model.graph)

    @cached_property
    def initializers(self) -> dict[str, np.ndarray]:
        return {name: read() for name, read in self.model.initializers(self.model.graph)}

    @cached_property
    def inputs(self) -> list[Any]:
        """Graph inputs that have no initializer as their default."""
        defaults = {name for name, _ in self.model.initializers(self.model.graph)}
        return [i for i in self.model.graph.input if i.name not in defaults]

    @cached_property
    def parameters(self) -> list[str]:
        """Names of initializers that are weights: float arrays that some node computes with."""
        used: set[str] = set()
        for node in _all_nodes(self.model):
            for number, name in enumerate(node.input):
                if (node.op_type, number) not in _SETTINGS:
                    used.add(name)
        return [n for n, a in self.initializers.items() if n in used and a.ndim > 0 and a.size and _is_float(a)]


def _is_float(array: np.ndarray) -> bool:
    return is_plain(array) and dtype_of(array).is_float


def _all_nodes(model: Model) -> Iterator[Any]:
    work = [model.graph]
    while work:
        for node in work.pop().node:
            yield node
            work += subgraphs(node)


class OnnxModule(Module):
    """A model read from an ONNX file. `weights` holds its parameters by the names they have in the file."""

    training = False

    def __init__(self, model: Model) -> None:
        self._file = _File(model)
        self.weights: dict[str, Any] = {n: self._file.initializers[n] for n in self._file.parameters}

    # --- what it is --------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._file.model.name or self._file.model.graph.name or "onnx"

    @property
    def model(self) -> Model:
        return self._file.model

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(i.name for i in self._file.inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self._file.model.graph.output)

    @property
    def given(self) -> dict[str, Given | None]:
        """What the file says about each input; None for what is known only when the model is called."""
        dims = DimNames()
        return {i.name: declared(i.type, i.name, dims) for i in self._file.inputs}

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The declared types of the inputs, in order; dim_params are symbolic dims."""
        found = {n: g.type if g is not None else None for n, g in self.given.items()}
        unknown = [n for n, t in found.items() if t is None]
        if unknown:
            problem = Problem(Kind.BAD_TYPE, f"inputs {', '.join(unknown)} have no declared tensor type")
            raise OnnxError([problem], self.name)
        return tuple(t for t in found.values() if t is not None)

    def __repr__(self) -> str:
        count = sum(a.size for a in self.weights.values())
        return f"OnnxModule({self.name}: {len(self._file.items)} nodes, {count} parameters)"

    # --- using it ----------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The outputs for tensors of a trace: one, or a tuple in the file's order."""
        values = self._ordered(inputs, named)
        tensors = [v for v in values.values() if isinstance(v, Tensor)]
        tensors += [w for w in self.weights.values() if isinstance(w, Tensor)]
        if not tensors:
            raise IngotTypeError(
                Code.NO_TENSOR_ARGUMENT, "an ONNX model is called on arrays only after it is compiled: ingot.compile(model)"
            )
        trace = max((t.builder for t in tensors), key=lambda b: b.depth)
        scope = self._scope(trace, values)
        importer = Importer(self._file.model)
        importer.run(self._file.items, scope)
        self._check(importer)
        results = [_output(importer, scope, name) for name in self.output_names]
        return results[0] if len(results) == 1 else tuple(results)

    def _ordered(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        names = self.input_names
        values = dict(zip(names, inputs, strict=False))
        values.update(named)
        if len(inputs) > len(names) or set(values) != set(names):
            raise IngotTypeError(
                Code.ARGUMENT_COUNT, f"{self.name} takes {len(names)} inputs ({', '.join(names)}), {len(values)} were given"
            )
        return {n: values[n] for n in names}

    def _scope(self, trace: Trace, values: Mapping[str, Value]) -> Scope:
        scope = Scope(trace)
        scope.weights.update(self.initial_values())
        for name, value in values.items():
            scope.set(name, scope.adopt(value))
        return scope

    def initial_values(self) -> dict[str, Weight]:
        """Initializers as values of a trace: parameters are inputs of it, the rest arrays known now."""
        found = {n: _as_known(a) for n, a in self._file.initializers.items()}
        found.update({n: _as_weight(n, w) for n, w in self.weights.items()})
        return found

    def _check(self, importer: Importer) -> None:
        if importer.problems:
            raise OnnxError(importer.problems, self.name)
        waiting = [d for d in importer.deferred if d.on_host or d.needs]
        if waiting:
            problems = [Problem(Kind.UNSUPPORTED, f"{d.reason}: not traceable", d.item.label,
                                "such models are compiled as a whole: ingot.compile(model)") for d in waiting]  # fmt: skip
            raise OnnxError(problems, self.name)

    # --- compiling ---------------------------------------------------------------------------------

    def compile_for(self, types: Sequence[Any], options: Options) -> Any:
        """What ingot.compile gives: native code for the declared types, or for the given ones."""
        given = self.given
        if types:
            checked = [as_type(t, n) for n, t in enumerate(types)]
            if len(checked) != len(given):
                raise IngotTypeError(
                    Code.ARGUMENT_COUNT,
                    f"{self.name} takes {len(given)} inputs ({', '.join(given)}), {len(checked)} types were given",
                )
            given = {n: _retyped(g, t) for (n, g), t in zip(given.items(), checked, strict=True)}
        return compile_staged(self._staged(options), given)

    def examine(self) -> None:
        """Raises the OnnxError that compiling for the declared types raises, without making code."""
        examine_staged(self._staged(Options()), self.given)

    def _staged(self, options: Options) -> Staged:
        return Staged(self._file.model, self._file.items, self.output_names, self.initial_values(), options, self.name)


def _retyped(declared: Given | None, type_: TensorType) -> Given:
    kind = declared.element if declared is not None else None
    if kind is not None and kind.storage == type_.dtype:
        return Given(type_, kind)
    return Given(type_, element_of_dtype(type_.dtype))


def _as_known(array: np.ndarray) -> Weight:
    return lambda trace: array


def _as_weight(name: str, array: Any) -> Weight:
    def make(trace: Trace) -> Any:
        if isinstance(array, Tensor):
            value = trace.adopt(array.value, array.builder)
            return array if value is None else Tensor(trace, value)
        if trace.parent is not None or any(v.name == name for v in trace.inputs):
            return array
        trace.constants[name] = array
        return Tensor(trace, trace.input(name, type_of(array), "constant"))

    return make


def _output(importer: Importer, scope: Scope, name: str) -> Any:
    call = Call(importer, scope, NodeProto(), {}, 0, [])
    return call.tensor(scope.find(name))


# --- declared types -----------------------------------------------------------------------------------


LONGEST_EXPRESSION = 100  # characters
MOST_TERMS = 64  # of a product of sums, written out
NAMELESS = ("", "?", "-1", "None")  # what exporters write for a dim that has no name: two of them are not one dim


class DimNames:
    """Symbolic dims for the dim_params of one model: the same name is the same dim."""

    def __init__(self) -> None:
        self.symbols: dict[str, Dim] = {}

    def named(self, name: str) -> Dim:
        if name not in self.symbols:
            self.symbols[name] = self._parsed(name)
        return self.symbols[name]

    def _parsed(self, name: str) -> Dim:
        """Exporters also write expressions of other names; what is longer, or becomes larger, than these are is a name."""
        if name.isidentifier() or len(name) > LONGEST_EXPRESSION:
            return Symbol(name)
        try:
            dim = symbolic.parse(name, Symbol)
        except (ValueError, TypeError, ArithmeticError):
            return Symbol(name)
        return dim if isinstance(dim, int) or len(dim.terms) <= MOST_TERMS else Symbol(name)


def declared(type_: TypeProto, name: str, dims: DimNames) -> Given | None:
    """What a declared type says; None when a value's kind or rank is left open."""
    if type_.WhichOneof("value") != "tensor_type" or not type_.tensor_type.HasField("shape"):
        return None
    kind = element(type_.tensor_type.elem_type)
    if kind is None:
        raise ProblemError(Kind.BAD_TYPE, f"{name!r} has the unknown element type {type_.tensor_type.elem_type}")
    if kind.storage is None:
        return None
    shape: list[Dim] = []
    for number, dim in enumerate(type_.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value != UNKNOWN_EXTENT:
            if dim.dim_value < 0:
                raise ProblemError(Kind.BAD_TYPE, f"dim {number} of {name!r} is {dim.dim_value}")
            shape.append(int(dim.dim_value))
        else:
            is_named = dim.dim_param not in NAMELESS
            shape.append(dims.named(dim.dim_param) if is_named else Symbol(f"{name}.{number}"))
    return Given(TensorType(kind.storage, tuple(shape)), kind)

