"""Rules of scalar expressions, shared by the tensor and the loop level.

A question that may be undecided at compile time, such as whether an index with symbolic dims stays inside its
buffer, is let through unless the answer is provably wrong.
"""

from __future__ import annotations

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.recursion import Call, unwind
from ingot.compiler.ir.scalar import (
    COMBINERS,
    FUNCTIONS,
    Apply,
    Bitcast,
    BoundedIndex,
    Buffer,
    Cast,
    Const,
    IndexValue,
    Lead,
    Load,
    Local,
    Read,
    Reduce,
    Scalar,
)
from ingot.compiler.ir.symbolic import Atom, Dim, Opaque, Symbol, Variable
from ingot.compiler.ir.text.write import Writer
from ingot.compiler.ir.types import DTYPES, DType, boolean
from ingot.compiler.ir.verify.errors import VerifyError

_BOOL_COMBINERS = ("any", "all")
_NUMBER_COMBINERS = ("sum", "prod")


class ScalarChecker:
    """Checks expressions at one place of a program. Levels derive from it and say what is legal there."""

    allows_reads = False  # locals exist
    nested_reductions = False  # a Reduce may stand inside another expression

    def __init__(self, where: str) -> None:
        self.where = where
        self.seen: set[tuple[int, bool, bool]] = set()  # nodes found right while nothing was bound or unbound
        self.variables: set[Atom] = set()
        self.buffers: set[Buffer] = set()
        self.locals: set[Local] = set()
        self.reductions = False  # whether a Reduce may stand where we are
        self.certain = True  # whether what we look at is evaluated at every point

    def error(self, message: str) -> VerifyError:
        return VerifyError(f"{self.where}: {message}")

    def require(self, condition: object, message: str) -> None:
        """None, the answer to an undecided question, is let through."""
        if condition is False:
            raise self.error(message)

    # --- index arithmetic ------------------------------------------------------------------------

    def dim(self, dim: Dim, what: str) -> None:
        """Every variable is bound; scalars that compute run-time integers obey the rules too."""
        if not isinstance(dim, (int, symbolic.Expr)):
            raise self.error(f"{what} is {dim!r}, not an index expression")
        for atom in sorted(symbolic.atoms(dim), key=_place) if not isinstance(dim, int) else ():
            if isinstance(atom, Variable) and atom not in self.variables:
                raise self.error(f"{what}, {text_of(dim)}, uses the variable {atom.name}, which is not bound here")
            if isinstance(atom, Opaque) and isinstance(atom.payload, Scalar):
                self._payload(atom.payload)

    def _payload(self, payload: Scalar) -> None:
        reductions, self.reductions = self.reductions, False
        self.scalar(payload)
        self.reductions = reductions
        if not payload.dtype.is_integer:
            raise self.error(f"an index is computed by {text_of(payload)}, which is {payload.dtype}, no integer")

    def access(self, buffer: Buffer, index: tuple[Dim, ...], what: str) -> None:
        """A buffer that exists, one index for each of its dims, none provably outside."""
        if buffer not in self.buffers:
            raise self.error(f"{what} {buffer!r}, which does not exist or has no value here")
        if len(index) != len(buffer.shape):
            raise self.error(f"{what} {buffer!r} with {len(index)} indices, it has {len(buffer.shape)} dims")
        for axis, (position, extent) in enumerate(zip(index, buffer.shape, strict=True)):
            self.dim(position, f"index {axis} of {buffer.name}")
            if self.certain and self.is_outside(position, extent):
                raise self.error(f"{what} {buffer!r} at {text_of(position)} in dim {axis}, which is outside")

    def is_outside(self, position: Dim, extent: Dim) -> bool:
        """Whether the position is provably outside [0, extent). An extent that may be 0 proves nothing: what
        is never read has no place, and an index from data fails when the program runs."""
        if symbolic.is_nonnegative(extent - 1) is not True:
            return False
        return symbolic.less(position, 0) is True or symbolic.less_equal(extent, position) is True

    # --- scalars ---------------------------------------------------------------------------------

    def scalar(self, scalar: Scalar) -> None:
        unwind(self._visit(scalar))

    def _visit(self, scalar: Scalar) -> Call[None]:
        key = id(scalar), self.certain, self.reductions
        if key not in self.seen:
            yield self._scalar(scalar)
            self.seen.add(key)

    def _scalar(self, scalar: Scalar) -> Call[None]:
        match scalar:
            case Const(_, dtype):
                self._known_type(dtype)
            case Load(buffer, index):
                self.access(buffer, index, "reads")
            case Read(local):
                self._read(local)
            case Apply():
                yield self._apply(scalar)
            case Cast(value, dtype):
                self._known_type(dtype)
                yield self._inner(value)
            case Bitcast(value, dtype):
                self._known_type(dtype)
                yield self._inner(value)
                if value.dtype.itemsize != dtype.itemsize:
                    raise self.error(f"the bits of a {value.dtype} are taken for a {dtype} of another width")
            case IndexValue(dim, dtype):
                self.dim(dim, "an index value")
                if not dtype.is_integer:
                    raise self.error(f"an index value has the type {dtype}, which is no integer; cast it")
            case BoundedIndex(value, extent, _):
                yield self._inner(value)
                self.dim(extent, "the extent of a bounded index")
                if not value.dtype.is_integer:
                    raise self.error(f"a bounded index is {value.dtype}, no integer")
            case Reduce():
                yield self._reduce(scalar)
            case Lead(buffer):
                self._lead(buffer)
            case _:
                raise self.error(f"{scalar!r} is no scalar expression")

    def _known_type(self, dtype: DType) -> None:
        if DTYPES.get(dtype.name) != dtype:
            raise self.error(f"{dtype!r} is not an element type")

    def _inner(self, scalar: Scalar) -> Call[None]:
        """A part of an expression: a reduction that may only be a root may not stand here."""
        reductions, self.reductions = self.reductions, self.reductions and self.nested_reductions
        yield self._visit(scalar)
        self.reductions = reductions

    def _lead(self, buffer: Buffer) -> None:
        if not self.allows_reads or buffer not in self.buffers or buffer.space == "register":
            raise self.error(f"it asks where {buffer!r} is, which has no address here")

    def _read(self, local: Local) -> None:
        if not self.allows_reads:
            raise self.error(f"the local {local.name} is read, but the tensor level has no locals")
        if local not in self.locals:
            raise self.error(f"{local.name} is read, but no let binds it here")

    def _apply(self, apply: Apply) -> Call[None]:
        function, args = apply.function, apply.args
        if FUNCTIONS.get(function.name) != function:
            raise self.error(f"there is no scalar function {function.name!r}")
        if len(args) != function.arity:
            raise self.error(f"{function.name} takes {function.arity} arguments, not {len(args)}")
        certain = self.certain
        for number, arg in enumerate(args):
            self.certain = certain and not (function.name == "select" and number)
            yield self._inner(arg)
        self.certain = certain
        self._argument_types(function.name, function.kinds, args)

    def _argument_types(self, name: str, kinds: tuple[str, ...], args: tuple[Scalar, ...]) -> None:
        typed = args
        if name == "select":
            typed = args[1:]
            if args[0].dtype != boolean:
                raise self.error(f"select chooses by a {args[0].dtype}, not a bool")
        elif name in ("shl", "shr"):
            typed = args[:1]
            if not args[1].dtype.is_integer:
                raise self.error(f"{name} shifts by a {args[1].dtype}, not an integer")
        found = [a.dtype for a in typed]
        if any(d != found[0] for d in found):
            raise self.error(f"{name} is applied to different types: {', '.join(map(repr, found))}")
        if found[0].kind not in kinds:
            raise self.error(f"{name} takes {' or '.join(kinds)}, not {found[0]}")

    def _reduce(self, reduce: Reduce) -> Call[None]:
        if not self.reductions:
            place = "loops" if self.allows_reads else "another expression; it must be all of a definition"
            raise self.error(f"a {reduce.combiner} over variables stands inside {place}")
        if reduce.combiner not in COMBINERS:
            raise self.error(f"there is no reduction {reduce.combiner!r}")
        if len(reduce.variables) != len(reduce.extents):
            raise self.error(
                f"a {reduce.combiner} has {len(reduce.variables)} variables, {len(reduce.extents)} extents"
            )
        variables, certain = set(self.variables), self.certain
        for extent in reduce.extents:
            if not isinstance(extent, int) and any(isinstance(a, Variable) for a in symbolic.atoms(extent)):
                raise self.error(f"the extent {text_of(extent)} of a {reduce.combiner} depends on a variable")
        for variable, extent in zip(reduce.variables, reduce.extents, strict=True):
            self.bind(variable, extent)
        yield self._inner(reduce.body)
        self.variables, self.certain = variables, certain
        self.seen.clear()
        kind = reduce.body.dtype.kind
        if (reduce.combiner in _BOOL_COMBINERS and kind != "bool") or (
            reduce.combiner in _NUMBER_COMBINERS and kind == "bool"
        ):
            raise self.error(f"{reduce.combiner} of {reduce.body.dtype} has no meaning")

    def bind(self, variable: Dim, extent: Dim) -> None:
        """A variable that runs over [0, extent): new, and with bounds that allow it."""
        self.dim(extent, "an extent")
        if isinstance(variable, int):
            if variable != 0 or symbolic.equal(extent, 1) is False:
                raise self.error(f"the index {variable} stands for a variable of extent {text_of(extent)}")
            return
        if not isinstance(variable, Variable):
            raise self.error(f"{text_of(variable)} is used as a variable, but is none")
        if variable in self.variables:
            raise self.error(f"the variable {variable.name} is bound twice")
        if symbolic.is_nonnegative(extent) is False:
            raise self.error(f"the extent of {variable.name}, {text_of(extent)}, is negative")
        self._bounds(variable, extent)
        self.variables.add(variable)
        self.certain = self.certain and symbolic.is_nonnegative(extent - 1) is True
        self.seen.clear()

    def _bounds(self, variable: Variable, extent: Dim) -> None:
        lower = variable.lower is not None and symbolic.less(0, variable.lower)
        upper = variable.upper is not None and symbolic.less(variable.upper, extent - 1)
        if lower is True or upper is True:
            bounds = f"{text_of(variable.lower)} to {text_of(variable.upper)}"
            raise self.error(f"{variable.name} runs from 0 to {text_of(extent - 1)}, outside its own bounds {bounds}")


def _place(atom: Atom) -> tuple[str, str]:
    return type(atom).__name__, getattr(atom, "name", "")


def text_of(item: Scalar | Dim | None) -> str:
    """An expression as text, for messages."""
    if item is None:
        return "none"
    return Writer().dim(item) if isinstance(item, (int, symbolic.Expr)) else Writer().scalar(item)


def check_symbols(where: str, symbols: tuple[Symbol, ...]) -> None:
    """One name, one symbol: the same name with other bounds would be another dim."""
    seen: dict[str, Symbol] = {}
    for symbol in symbols:
        other = seen.setdefault(symbol.name, symbol)
        if other is not symbol:
            raise VerifyError(
                f"{where}: two dims are called {symbol.name}: one in {other.lower} to {other.upper}, "
                f"one in {symbol.lower} to {symbol.upper}"
            )
