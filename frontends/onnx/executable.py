"""What compiling an ONNX model gives: one program where that is possible, else programs around host nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ingot.compiler.errors import Code, IngotTypeError
from ingot.compiler.ir.types import TensorType
from ingot.compiler.pipeline import Compiled
from ingot.frontends.dsl.api import CompiledFunction
from ingot.frontends.dsl.trace import Traced
from ingot.frontends.onnx.elements import Element, element_of
from ingot.frontends.onnx.problems import Kind, OnnxError, Problem
from ingot.frontends.onnx.staged import Staged
from ingot.frontends.onnx.stages import Given
from ingot.runtime.arguments import order_arguments
from ingot.runtime.errors import ArgumentError, ExecutionError
from ingot.runtime.manifest import TensorSpec
from ingot.runtime.report import Report, Section


def compile_staged(staged: Staged, given: Mapping[str, Given | None]) -> CompiledFunction | OnnxExecutable:
    """A CompiledFunction when the whole model is one program on plain arrays, else an OnnxExecutable."""
    known = _known(given)
    if len(known) < len(given):
        examine_staged(staged, given)
        return OnnxExecutable(staged, given)
    try:
        stage = staged.build_first(known)
    except OnnxError as error:
        if not _may_vanish(error, known):
            raise
        return OnnxExecutable(staged, given)  # the declared dims say too little: compiled for the shapes of each call
    plain = all(g.element is not None and not g.element.is_coded for g in known.values())
    if plain and stage.is_whole and stage.compiled is not None:
        places = {name: place for place, (name, _) in enumerate(stage.results)}
        structure = 0 if len(staged.outputs) == 1 else tuple(places[name] for name in staged.outputs)
        assert stage.graph is not None
        traced = Traced(stage.graph, structure)
        if stage.assumes:
            return AssumingFunction(stage.compiled, traced, OnnxExecutable(staged, given))
        if any(g.is_symbolic for g in known.values()):
            return OpenFunction(stage.compiled, traced, OnnxExecutable(staged, given))
        return CompiledFunction(stage.compiled, traced, staged.options.threads)
    return OnnxExecutable(staged, given)


def examine_staged(staged: Staged, given: Mapping[str, Given | None]) -> None:
    """Raises the OnnxError that compile_staged raises, without making code."""
    known = _known(given)
    try:
        staged.examine(known, given.keys() - known.keys())
    except OnnxError as error:
        if not _may_vanish(error, known):
            raise


def _known(given: Mapping[str, Given | None]) -> dict[str, Given]:
    return {n: g for n, g in given.items() if g is not None}


def _may_vanish(error: OnnxError, known: Mapping[str, Given]) -> bool:
    """Whether the shapes of a call might not have the problems that the declared ones have."""
    return error.is_about_shapes and any(g.is_symbolic for g in known.values())


class OpenFunction(CompiledFunction):
    """One program for open dims, which it takes to be at least 1. A call with an empty array, such as the memory of a
    decoder before its first word, is compiled for its own shapes."""

    def __init__(self, compiled: Compiled, traced: Traced, otherwise: OnnxExecutable) -> None:
        super().__init__(compiled, traced, otherwise.staged.options.threads)
        self.otherwise = otherwise

    def __call__(self, *args: object, out: Any = None, **keywords: object) -> Any:
        try:
            return super().__call__(*args, out=out, **keywords)
        except (ArgumentError, ExecutionError) as error:
            if out is not None or not self.may_differ(*args, *keywords.values()):
                raise
            return self.otherwise.for_shapes(error, *args, **keywords)

    def may_differ(self, *args: object) -> bool:
        """Whether a call that the program refused may be one for another program."""
        return any(np.size(array) == 0 for array in args)  # type: ignore[arg-type]


class AssumingFunction(OpenFunction):
    """One program that takes extents to be equal which the declared dims do not show to be. It checks them; a call
    for which they are not is compiled for its own shapes, or refused by the op that needs them."""

    def may_differ(self, *args: object) -> bool:
        return True


class OnnxExecutable:
    """A model that runs in stages: compiled programs, and host nodes between them."""

    def __init__(self, staged: Staged, given: Mapping[str, Given | None]) -> None:
        self.staged = staged
        self.given = dict(given)
        self.types = _known(given)
        self.inputs = tuple(_spec(n, g) for n, g in given.items())

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.staged.outputs

    def run(self, *args: Any, **named: Any) -> list[Any]:
        """The outputs in order, always a list."""
        environment = self._environment(args, named)
        return self.staged(environment, self.types)

    def _environment(self, args: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
        values = order_arguments(self.inputs, args, named)
        given = zip(self.given.items(), values, strict=True)
        return {name: _checked(name, what, value) for (name, what), value in given}

    def for_shapes(self, error: Exception, *args: Any, **named: Any) -> Any:
        """The outputs of a program for the shapes of these arguments; `error` when their types are wrong in any case."""
        environment = self._environment(args, named)
        for name, array in environment.items():
            what = self.given[name]
            if what is not None and what.type is not None and not fits(what.type, np.shape(array)):
                raise error
        outputs = self.staged(environment)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def __call__(self, *args: Any, **named: Any) -> Any:
        outputs = self.run(*args, **named)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def host_nodes(self) -> list[tuple[str, str]]:
        """(node, reason) of every node that the host runs, as far as the model has been run."""
        found: dict[str, str] = {}
        for stage in self.staged.stages():
            found.update({d.item.label: d.reason for d in stage.deferred if d.on_host})
        return list(found.items())

    def value_nodes(self) -> list[tuple[str, str]]:
        """(node, reason) of nodes that are compiled for values which the host has to know."""
        found: dict[str, str] = {}
        for stage in self.staged.stages():
            found.update({d.item.label: d.reason for d in stage.deferred if d.needs and not d.on_host})
        return list(found.items())

    @property
    def programs(self) -> list[Any]:
        return [s.program for s in self.staged.stages() if s.program is not None]

    def explain(self) -> Report:
        """What runs where, and what the compiler did to each part."""
        host = Section(
            "Nodes that run on the host", "" if self.host_nodes() else "none", ("node", "why"), tuple(self.host_nodes())
        )
        values = Section(
            "Nodes compiled for values known at run time", "", ("node", "why"), tuple(self.value_nodes())
        )
        parts = [section for program in self.programs for section in program.explain().sections]
        return Report(self.staged.name, (host, values, *parts))

    def save(self, path: object) -> None:
        nodes = ", ".join(f"{label}" for label, _ in (*self.host_nodes(), *self.value_nodes()))
        problem = Problem(Kind.UNSUPPORTED, f"a model with host nodes cannot be saved as one program: {nodes}")
        raise OnnxError([problem], self.staged.model.name)

    def __repr__(self) -> str:
        return f"OnnxExecutable({', '.join(map(str, self.inputs))}) -> ({', '.join(self.output_names)})"


def fits(declared: TensorType, shape: Sequence[int]) -> bool:
    """Whether an array of this shape may be what was declared: of that rank, with the extents that are known."""
    return len(shape) == declared.rank and all(
        not isinstance(d, int) or d == extent for d, extent in zip(declared.shape, shape, strict=True)
    )


def _spec(name: str, what: Given | None) -> TensorSpec:
    if what is None or what.type is None:
        return TensorSpec(name, "u8", ())
    return TensorSpec(name, what.type.dtype.name, tuple(d if isinstance(d, int) else str(d) for d in what.type.shape))


def _checked(name: str, what: Given | None, value: Any) -> Any:
    """The value as an array of the declared element type; a plain list of numbers is one too."""
    if what is None or what.element is None:
        return value
    array = np.asarray(value)
    if array.dtype != what.element.numpy:
        array = _converted(name, array, what.element)
    return array


def _converted(name: str, array: np.ndarray, kind: Element) -> np.ndarray:
    if array.dtype.kind in "OUST" or element_of(array).storage is None:
        raise IngotTypeError(Code.BAD_TYPE_ARGUMENT, f"input {name!r} takes {kind} values, not {array.dtype}")
    if kind.is_coded and array.dtype == kind.storage.numpy:  # type: ignore[union-attr]
        return kind.decode(array)
    if not np.can_cast(array.dtype, kind.numpy, "same_kind"):
        raise IngotTypeError(Code.BAD_TYPE_ARGUMENT, f"input {name!r} takes {kind} values, not {array.dtype}")
    return array.astype(kind.numpy)
