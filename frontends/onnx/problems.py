"""What can be wrong with an ONNX model: stable codes, each with a title and a hint.

`docs/onnx.md` explains them one by one. A Problem names the node; an OnnxError carries all problems of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ingot.compiler.errors import Code, IngotValueError
from ingot.compiler.ir.symbolic import Dim


class Kind(Enum):
    """(code, title, what to do when nothing better is known)"""

    UNREADABLE = ("O101", "the file is not an ONNX model", "it is truncated or corrupt, or holds something else")
    EXTERNAL_DATA = ("O102", "external data cannot be read", "keep the data file beside the model, inside its folder")
    BAD_TENSOR = ("O103", "a tensor is malformed", "write the model again with the tool that made it")
    DUPLICATE_NAME = ("O104", "one name is defined twice", "every value of a graph needs a name of its own")
    MISSING_INPUT = ("O105", "a value is used but never defined", "check the name; nodes must come after their inputs")
    CYCLE = ("O106", "nodes depend on each other in a circle", "ONNX graphs have no cycles; use Loop or Scan")
    UNKNOWN_OP = ("O107", "there is no such op", "check the op's domain, or give the model a function of that name")
    UNKNOWN_VERSION = ("O108", "the op does not exist in this opset version", "convert the model to another opset")
    BAD_ATTRIBUTE = ("O109", "an attribute does not fit the op", "the op's page of the ONNX documentation lists them")
    INPUT_COUNT = ("O110", "the number of inputs or outputs does not fit the op", "optional inputs are empty names")
    ELEMENT_TYPE = ("O111", "an element type does not fit the op", "insert a Cast, or export in another type")
    BAD_SHAPE = ("O112", "shapes do not fit the op", "check the shapes named above")
    RECURSION = ("O113", "a function calls itself", "ONNX functions cannot be recursive")
    BAD_TYPE = ("O114", "an input or output has no usable type", "declare its element type and shape")
    NESTING = ("O115", "subgraphs are nested too deeply", "at most 64 levels are read")
    BAD_GRAPH = ("O116", "the graph is malformed", "write the model again with the tool that made it")
    UNSUPPORTED = ("O117", "this use of the op is not supported", "see docs/onnx_coverage.md")
    TOO_LARGE = ("O118", "a tensor or the model is too large", "at most 2^47 bytes and 64 axes in a tensor, and 2^18 nodes in all")
    BAD_VALUE = ("O119", "a value does not fit the op", "check the value named above")
    BAD_NODE = ("O120", "a node is malformed", "check its attributes and inputs; if it is sound, report it as a bug")

    @property
    def code(self) -> str:
        return self.value[0]

    @property
    def title(self) -> str:
        return self.value[1]

    @property
    def hint(self) -> str:
        return self.value[2]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where."""

    kind: Kind
    message: str
    node: str = ""  # the node's name, or its op and number when it has none
    hint: str = ""
    extents: tuple[Dim, Dim] | None = None  # what must be equal and is not known to be
    is_certain: bool = False  # whatever the sizes of a call are

    @property
    def code(self) -> str:
        return self.kind.code

    def __str__(self) -> str:
        where = f" at {self.node}" if self.node else ""
        return f"{self.code}{where}: {self.message} (hint: {self.hint or self.kind.hint})"


class ProblemError(Exception):
    """Raised where a problem is found; the importer adds the node and collects it."""

    def __init__(self, kind: Kind, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint

    def at(self, node: str) -> Problem:
        return Problem(self.kind, str(self), node, self.hint)


class OnnxError(IngotValueError):
    """A model that cannot be imported, with every problem that was found."""

    def __init__(self, problems: Sequence[Problem], name: str = "") -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  {problem}" for problem in problems)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(Code.ONNX_MODEL, f"{name or 'the ONNX model'} has {count}:\n{listed}")

    @property
    def is_about_shapes(self) -> bool:
        """Whether every problem is one that other shapes might not have."""
        return all(p.kind in (Kind.BAD_SHAPE, Kind.UNSUPPORTED) and not p.is_certain for p in self.problems)
