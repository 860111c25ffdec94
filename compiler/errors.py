"""Every diagnostic of the compiler: a code, what happened, where in the user's program, and what to do.

Each code is raised somewhere and tested at least once. `docs/errors.md` explains them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Entry:
    code: str
    title: str
    hint: str


class Code(Enum):
    """The catalogue. The hint is shown when the raiser knows nothing better."""

    OP_ARGUMENTS = Entry("E101", "the arguments do not fit the op", "check the shapes and element types named above")
    TENSOR_AS_BOOL = Entry(
        "E102",
        "a traced tensor has no truth value",
        "use ingot.where for elementwise choice, ingot.cond for branches, ingot.while_loop for loops",
    )
    TENSOR_AS_NUMBER = Entry(
        "E103",
        "a traced tensor has no value yet",
        "values exist when the compiled function runs; return the tensor instead of converting it",
    )
    MIXED_TRACES = Entry(
        "E104",
        "a tensor of another trace is used here",
        "pass it as an argument; do not keep tensors of one trace in globals or attributes",
    )
    NOT_A_TENSOR = Entry("E105", "an output is not a tensor", "return tensors, or tuples, lists or dicts of tensors")
    BAD_TYPE_ARGUMENT = Entry(
        "E106", "an argument type is not a type", "write types like ingot.f32[64, 784] or give an example array"
    )
    ARGUMENT_COUNT = Entry(
        "E107", "the number of argument types does not fit the function", "give one type per argument"
    )
    BAD_INDEX = Entry("E108", "this index is not supported", "index with ints, slices, None, ... and integer tensors")
    IMMUTABLE_TENSOR = Entry(
        "E109", "tensors cannot be assigned to", "use ingot.where, x.scatter_elements(...) or build a new tensor"
    )
    SYMBOLIC_LENGTH = Entry(
        "E110", "the length of this axis is not known while tracing", "use ingot.scan to loop over a symbolic axis"
    )
    NOT_DIFFERENTIABLE = Entry(
        "E111", "the gradient passes through ops that have none", "use ingot.stop_gradient around them"
    )
    GRADIENT_OF_NON_SCALAR = Entry(
        "E112",
        "the gradient of a tensor that is not a float scalar",
        "sum or mean it first, or use ingot.vjp or ingot.jacobian",
    )
    TOO_LARGE = Entry("E113", "a tensor is too large", "check the shape; sizes are limited to 2^47 bytes and 64 axes")
    MEMORY_BUDGET = Entry(
        "E114", "the memory budget cannot be met", "raise memory_budget to the smallest size named above"
    )
    UNKNOWN_TARGET = Entry("E115", "unknown target", "`ingot targets` lists them")
    BAD_OPTION = Entry("E116", "no such option, or a value it does not take", "the options are fields of ingot.Options")
    BAD_CHECKPOINT = Entry(
        "E117", "the checkpoint does not fit this trainer", "load it into the model it was saved from"
    )
    NOT_FINITE = Entry("E118", "a value that is not finite appeared", "the op named above made it from finite inputs")
    DIM_CONFLICT = Entry(
        "E119", "one dim name stands for two sizes or bounds", "use different names, or equal sizes and bounds"
    )
    BAD_DUMP = Entry("E120", "a dump does not parse or verify", "the line and column are named above")
    NO_TENSOR_ARGUMENT = Entry(
        "E121", "this needs at least one traced tensor", "call it inside a function that is being compiled"
    )
    BRANCH_TYPES = Entry(
        "E122", "branches or loop bodies give different types", "make both sides give the same shapes and element types"
    )
    UNDETERMINED_DIM = Entry(
        "E123", "no argument determines a dim", 'give each name an axis of its own, for instance ingot.f32["n"]'
    )
    NO_C_COMPILER = Entry(
        "E160",
        "no C compiler was found",
        "install one (`apt install gcc`, or `pip install ziglang`), or name it: ingot.build(..., compiler=\"cc\")",
    )
    NOT_BUILDABLE = Entry("E161", "a stand-alone program cannot be built", "the reason is named above")
    ONNX_MODEL = Entry("E190", "an ONNX model cannot be imported", "`ingot check model.onnx` lists every problem")

    @property
    def id(self) -> str:
        return self.value.code


class IngotError(Exception):
    """A mistake in what the compiler was given."""

    def __init__(self, code: Code, message: str, source: object = None, hint: str = "") -> None:
        self.code = code
        self.message = message
        self.source = source
        self.hint = hint or code.value.hint
        where = f"\n  at {source}" if source else ""
        super().__init__(f"{code.id}: {message}{where}\n  hint: {self.hint}")


class IngotTypeError(IngotError, TypeError):
    """The same, for mistakes that Python programs expect as TypeError."""


class IngotValueError(IngotError, ValueError):
    """The same, for mistakes that Python programs expect as ValueError."""
