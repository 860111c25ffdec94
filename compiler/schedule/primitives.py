"""Rewrites of loop nests: the mechanism of scheduling. Each keeps the meaning of the statements.

    split       one loop into an outer loop of full blocks, an inner loop over a block, and a loop over the rest
    block       the same without a separate rest: the inner loop of the last block is shorter
    reorder     exchange two perfectly nested loops
    fuse        two perfectly nested loops into one
    join        loops one after the other into one loop over all their iterations
    unroll      a loop of constant extent into straight code
    vectorize   a loop into lanes
    strip       the usual use of the three above: unrolled vectors, single vectors, masked rest
    parallelize iterations onto threads
    distribute  a loop over several statements into one loop for each part
    hoist       what does not change in a loop out of it
    at          apply a rewrite to one loop inside statements, wherever it stands

A precondition that does not hold raises ScheduleError, which names the loop. Independence of iterations is
checked conservatively: what cannot be shown by comparing indices is refused.
Non-goal: choosing; no rewrite looks at the target.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import For, If, Let, Statement, Store, While
from ingot.compiler.ir.scalar import Buffer, Const, Load, Scalar, predicate
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import statement_scalars
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.statements import bound_buffers, copy, loads_in, stores, with_body

Rewrite = Callable[[For], "Sequence[Statement] | Statement"]


class ScheduleError(ValueError):
    """A rewrite does not apply to the loop it was asked to rewrite."""


def name_of(loop: For) -> str:
    return getattr(loop.variable, "name", str(loop.variable))


def _refuse(loop: For, rewrite: str, why: str) -> ScheduleError:
    return ScheduleError(f"cannot {rewrite} loop {name_of(loop)}: {why}")


def _require_serial(loop: For, rewrite: str) -> None:
    if loop.kind != "serial":
        raise _refuse(loop, rewrite, f"it is {loop.kind} already")


def at(statements: Sequence[Statement], variable: Dim, rewrite: Rewrite) -> tuple[Statement, ...]:
    """The statements with `rewrite` applied to the loop over `variable`."""
    found = 0

    def visit(block: Sequence[Statement]) -> tuple[Statement, ...]:
        nonlocal found
        result: list[Statement] = []
        for statement in block:
            match statement:
                case For(v) if v is variable:
                    found += 1
                    rewritten = rewrite(statement)
                    result.extend(rewritten if isinstance(rewritten, Sequence) else (rewritten,))
                case For(body=body):
                    result.append(with_body(statement, visit(body)))
                case If(condition, then, otherwise):
                    result.append(If(condition, visit(then), visit(otherwise)))
                case While(condition, body, limit):
                    result.append(While(condition, visit(body), limit))
                case _:
                    result.append(statement)
        return tuple(result)

    rewritten = visit(statements)
    if not found:
        raise ScheduleError(f"there is no loop over {getattr(variable, 'name', variable)}")
    return rewritten


def split(loop: For, factor: int) -> tuple[For | None, For | None]:
    """for v in n { S(v) }  ->  for o in n//f { for i in f { S(f*o + i) } }  and  for r in n%f { S(n//f*f + r) }

    The second loop does the remainder; either is None when it provably runs over nothing.
    """
    _require_serial(loop, "split")
    if factor < 1:
        raise _refuse(loop, "split", f"the factor {factor} is not positive")
    blocks, rest = loop.extent // factor, loop.extent % factor
    main = tail = None
    if blocks != 0:
        outer = symbolic.Variable(f"{name_of(loop)}_o", 0, blocks - 1)
        inner = symbolic.Variable(f"{name_of(loop)}_i", 0, factor - 1)
        body = copy(loop.body, {loop.variable: outer * factor + inner})  # type: ignore[dict-item]
        main = For(outer, blocks, (For(inner, factor, body),))
    if rest != 0:
        last = symbolic.Variable(f"{name_of(loop)}_r", 0, rest - 1)
        body = copy(loop.body, {loop.variable: blocks * factor + last})  # type: ignore[dict-item]
        tail = For(last, rest, body)
    return main, tail


def block(loop: For, factor: Dim) -> For:
    """for v in n { S(v) }  ->  for o in ceil(n/f) { for i in min(f, n - f*o) { S(f*o + i) } }"""
    _require_serial(loop, "block")
    blocks = symbolic.ceildiv(loop.extent, factor)
    outer = symbolic.Variable(f"{name_of(loop)}_o", 0, blocks - 1)
    extent = symbolic.minimum(factor, loop.extent - outer * factor)
    inner = symbolic.Variable(f"{name_of(loop)}_i", 0, extent - 1)
    body = copy(loop.body, {loop.variable: outer * factor + inner})  # type: ignore[dict-item]
    return For(outer, blocks, (For(inner, extent, body),))


def only_inner(loop: For, rewrite: str) -> For:
    """The loop that is the whole body of `loop`."""
    if len(loop.body) != 1 or not isinstance(loop.body[0], For):
        raise _refuse(loop, rewrite, "its body is not exactly one loop")
    return loop.body[0]


def reorder(loop: For) -> For:
    """for a in n { for b in m { S } }  ->  for b in m { for a in n { S } }      when m does not depend on a

    and every element is only touched by iterations that keep their order: S stores each element at most once
    over both loops, or an element that S updates moves with neither or with one of the loops.
    """
    inner = only_inner(loop, "reorder")
    if loop.variable in scalars.atoms_of_dim(inner.extent):
        raise _refuse(loop, "reorder", f"the extent of the inner loop {name_of(inner)} depends on it")
    for store in stores(inner.body):
        if store.buffer in bound_buffers(inner.body):
            continue
        if _moves_with(store, loop) is None or _moves_with(store, inner) is None:
            raise _refuse(loop, "reorder", f"it is not clear which elements of {store.buffer.name} it stores")
        _require_same_index(store, inner.body, loop, "reorder")
    return For(inner.variable, inner.extent, (with_body(loop, inner.body),), inner.kind, inner.width)


def _moves_with(store: Store, loop: For) -> bool | None:
    """Whether the loop's iterations store different elements; None when unknown."""
    coefficients = [scalars.index_coefficient(index, loop.variable) for index in store.index]
    if any(c is None for c in coefficients):
        return None
    return any(c != 0 for c in coefficients)


def _require_same_index(store: Store, body: Sequence[Statement], loop: For, rewrite: str) -> None:
    for load in loads_in(body):
        if load.buffer is store.buffer and load.index != store.index:
            raise _refuse(loop, rewrite, f"{store.buffer.name} is read and stored at different indices")
    for other in stores(body):
        if other.buffer is store.buffer and other.index != store.index:
            raise _refuse(loop, rewrite, f"{store.buffer.name} is stored at different indices")


def fuse(loop: For) -> For:
    """for a in n { for b in m { S(a, b) } }  ->  for f in n*m { S(f//m, f%m) }      when m does not depend on a

    Two serial loops give a serial one, two parallel loops a parallel one.
    """
    inner = only_inner(loop, "fuse")
    if loop.kind != inner.kind or loop.kind not in ("serial", "parallel"):
        raise _refuse(loop, "fuse", f"it is {loop.kind} and the inner loop {name_of(inner)} is {inner.kind}")
    if loop.variable in scalars.atoms_of_dim(inner.extent):
        raise _refuse(loop, "fuse", f"the extent of the inner loop {name_of(inner)} depends on it")
    extent = loop.extent * inner.extent
    fused = symbolic.Variable(f"{name_of(loop)}{name_of(inner)}", 0, extent - 1)
    mapping = {loop.variable: fused // inner.extent, inner.variable: fused % inner.extent}
    return For(fused, extent, copy(inner.body, mapping), loop.kind)  # type: ignore[arg-type]


def join(loops: Sequence[For]) -> For:
    """for a in n { S(a) } for b in m { T(b) }  ->  for s in n + m { if s < n { S(s) } else { T(s - n) } }

    for loops of one kind, serial or parallel; parallel ones must not store what another one touches.
    """
    first = loops[0]
    if any(loop.kind != first.kind for loop in loops) or first.kind not in ("serial", "parallel"):
        raise _refuse(first, "join", "the loops are not all serial or all parallel")
    if first.kind == "parallel":
        _require_disjoint(loops)
    total: Dim = 0
    for loop in loops:
        total = total + loop.extent
    section = symbolic.Variable("section", 0, total - 1)

    def choose(rest: Sequence[For], start: Dim) -> tuple[Statement, ...]:
        loop = rest[0]
        body = copy(loop.body, {loop.variable: section - start})  # type: ignore[dict-item]
        if len(rest) == 1:
            return body
        end = start + loop.extent
        return (If(predicate(section, "lt", end), body, choose(rest[1:], end)),)

    return For(section, total, choose(loops, 0), first.kind)


def _require_disjoint(loops: Sequence[For]) -> None:
    for loop in loops:
        stored = {store.buffer for store in stores(loop.body)} - bound_buffers(loop.body)
        for other in loops:
            if other is loop:
                continue
            touched = {load.buffer for load in loads_in(other.body)} | {store.buffer for store in stores(other.body)}
            for buffer in stored & touched:
                raise _refuse(loop, "join", f"{name_of(other)} touches {buffer.name}, which it stores")


def unroll(loop: For) -> For:
    """The iterations as straight code. Registers may be indexed by the variable."""
    _require_serial(loop, "unroll")
    if not isinstance(loop.extent, int):
        raise _refuse(loop, "unroll", f"its extent {loop.extent} is not constant")
    return For(loop.variable, loop.extent, loop.body, "unrolled")


def expand(loop: For) -> tuple[Statement, ...]:
    """for v in 3 { S(v) }  ->  S(0) S(1) S(2)"""
    if not isinstance(loop.extent, int):
        raise _refuse(loop, "expand", f"its extent {loop.extent} is not constant")
    result: list[Statement] = []
    for n in range(loop.extent):
        result.extend(copy(loop.body, {loop.variable: n}))  # type: ignore[dict-item]
    return tuple(result)


def vectorize(loop: For, width: int) -> For:
    """The iterations as lanes; lanes beyond the extent are masked off.

    Iterations must be independent, and no statement inside may be a serial loop whose extent differs by lane.
    """
    _require_serial(loop, "vectorize")
    if symbolic.less_equal(loop.extent, width) is not True:
        raise _refuse(loop, "vectorize", f"its extent {loop.extent} is not known to be at most {width}")
    _require_independent(loop, "vectorize")
    for statement in _walk(loop.body):
        if isinstance(statement, For) and loop.variable in scalars.atoms_of_dim(statement.extent):
            raise _refuse(loop, "vectorize", f"the extent of the inner loop {name_of(statement)} depends on it")
        if isinstance(statement, While):
            raise _refuse(loop, "vectorize", "it contains a while loop")
    return For(loop.variable, loop.extent, loop.body, "vector", width)


def parallelize(loop: For) -> For:
    """The iterations on threads, in any order and at the same time; they must be independent."""
    _require_serial(loop, "parallelize")
    _require_independent(loop, "parallelize")
    return For(loop.variable, loop.extent, loop.body, "parallel")


def _require_independent(loop: For, rewrite: str) -> None:
    """No iteration stores what another one reads or stores."""
    inside = bound_buffers(loop.body)
    for store in stores(loop.body):
        if store.buffer in inside:
            continue
        if not any(_separates(index, loop) for index in store.index):
            raise _refuse(loop, rewrite, f"its iterations may store the same elements of {store.buffer.name}")
        _require_same_index_up_to_inner(store, loop, rewrite)


def _separates(index: Dim, loop: For) -> bool:
    """Whether this index differs in any two iterations: it steps by more than the loops inside can cover."""
    step = scalars.index_coefficient(index, loop.variable)
    if step is None or step == 0 or isinstance(loop.variable, int):
        return False
    rest = symbolic.without(index, loop.variable)  # type: ignore[arg-type]
    inner = [s for s in _walk(loop.body) if isinstance(s, For)]
    if any(scalars.index_coefficient(rest, s.variable) is None for s in inner):
        return False
    span = _span(rest, inner)
    return bool(symbolic.less(span, step)) or bool(symbolic.less(span, -step))


def _span(rest: Dim, inner: Sequence[For]) -> Dim:
    """How much an index can vary over inner loops; each loop's extent counts with its greatest value."""
    total: Dim = 0
    for loop in inner:
        coefficient = scalars.index_coefficient(rest, loop.variable)
        if coefficient is None or coefficient == 0:
            continue
        size = coefficient if symbolic.is_nonnegative(coefficient) else -coefficient
        upper = symbolic.bounds(loop.extent)[1]
        total = total + size * ((loop.extent if upper is None else upper) - 1)
    return total


def _require_same_index_up_to_inner(store: Store, loop: For, rewrite: str) -> None:
    """Other accesses of the buffer agree with the store in the indices that separate iterations."""
    places = [n for n, index in enumerate(store.index) if _separates(index, loop)]
    others = [load.index for load in loads_in(loop.body) if load.buffer is store.buffer]
    others += [other.index for other in stores(loop.body) if other.buffer is store.buffer]
    for index in others:
        if not any(index[n] == store.index[n] for n in places):
            raise _refuse(loop, rewrite, f"an iteration may touch what another one stores in {store.buffer.name}")


def _walk(statements: Sequence[Statement]) -> list[Statement]:
    result: list[Statement] = []
    for statement in statements:
        result.append(statement)
        match statement:
            case For(body=body) | While(body=body):
                result.extend(_walk(body))
            case If(then=then, otherwise=otherwise):
                result.extend(_walk(then))
                result.extend(_walk(otherwise))
            case _:
                pass
    return result


def strip(loop: For, width: int, vectors: int = 1) -> tuple[Statement, ...]:
    """A loop over lanes: blocks of `vectors` unrolled vectors, then single vectors, then the masked rest."""
    result: list[Statement] = []
    main, tail = split(loop, width * vectors)
    if main is not None:
        result.append(with_body(main, _lanes(only_inner(main, "strip"), width)))
    if tail is not None:
        result.extend(_rest_lanes(tail, width))
    return tuple(result)


def _lanes(loop: For, width: int) -> tuple[Statement, ...]:
    """A loop whose constant extent is a multiple of the width, as unrolled vectors."""
    if loop.extent == width:
        return (vectorize(loop, width),)
    main, _ = split(loop, width)
    assert main is not None
    return (unroll(with_body(main, (vectorize(only_inner(main, "strip"), width),))),)


def _rest_lanes(loop: For, width: int) -> tuple[Statement, ...]:
    main, tail = split(loop, width)
    result: list[Statement] = []
    if main is not None:
        result.append(with_body(main, (vectorize(only_inner(main, "strip"), width),)))
    if tail is not None:
        single = tail.extent == 1
        result.extend(expand(tail) if single else [vectorize(tail, narrowest(tail.extent, width))])
    return tuple(result)


def narrowest(extent: Dim, width: int) -> int:
    """The narrowest vector, at most `width` lanes, that holds `extent` lanes."""
    narrow = width
    while narrow > 2 and symbolic.less_equal(extent, narrow // 2) is True:
        narrow //= 2
    return narrow


def distribute(loop: For, parts: Sequence[int]) -> tuple[For, ...]:
    """for v { S T }  ->  for v { S } for v { T }      cut after the given numbers of statements

    when T reads nothing that another iteration of S stores, and nothing bound in S is used in T.
    """
    _require_serial(loop, "distribute")
    cuts = [0, *parts, len(loop.body)]
    pieces = [loop.body[a:b] for a, b in itertools.pairwise(cuts) if a < b]
    for n, piece in enumerate(pieces):
        bound = bound_buffers(piece) | {s.local for s in piece if isinstance(s, Let)}
        later = [s for rest in pieces[n + 1 :] for s in rest]
        _require_separate(loop, piece, later, bound)
    return tuple(
        For(loop.variable, loop.extent, piece) if n == 0 else _fresh(loop, piece) for n, piece in enumerate(pieces)
    )


def _fresh(loop: For, body: Sequence[Statement]) -> For:
    (copied,) = copy((with_body(loop, body),))
    assert isinstance(copied, For)
    return copied


def _require_separate(loop: For, piece: Sequence[Statement], later: Sequence[Statement], bound: set) -> None:
    for load in loads_in(later):
        if load.buffer in bound:
            raise _refuse(loop, "distribute", f"{load.buffer.name} is bound before the cut and used after it")
    for statement in _walk(later):
        for value in statement_scalars(statement):
            for node in scalars.nodes(value):
                if isinstance(node, scalars.Read) and node.local in bound:
                    raise _refuse(loop, "distribute", f"{node.local.name} is bound before the cut and used after it")
    _require_independent(with_body(loop, (*piece, *later)), "distribute")


def hoist(loop: For) -> tuple[Statement, ...]:
    """for v { let x = E; S }  ->  let x = E; for v { S }      when E does not depend on v, nor on what S stores

    A load is moved only out of a loop that provably runs, since it might have been in no iteration at all.
    """
    moved: list[Statement] = []
    kept: list[Statement] = []
    stored = {store.buffer for store in stores(loop.body)}
    bound = bound_buffers(loop.body)
    runs = symbolic.less_equal(1, loop.extent) is True
    local_dependents: set = set()
    for statement in loop.body:
        if isinstance(statement, Let) and _invariant(statement.value, loop, stored | bound, local_dependents, runs):
            moved.append(statement)
            continue
        if isinstance(statement, Let):
            local_dependents.add(statement.local)
        kept.append(statement)
    return (*moved, with_body(loop, kept))


def _invariant(value: Scalar, loop: For, changing: set[Buffer], locals_: set, runs: bool) -> bool:
    if loop.variable in scalars.atoms_of(value):
        return False
    for node in scalars.nodes(value):
        if isinstance(node, Load) and (node.buffer in changing or not runs):
            return False
        if isinstance(node, scalars.Read) and node.local in locals_:
            return False
    return True


def simplify(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Loops over nothing vanish, loops over one element become their body, decided conditions their arm."""
    result: list[Statement] = []
    for statement in statements:
        match statement:
            case For(_, extent) if extent == 0:
                continue
            case For(variable, extent, body) if extent == 1:
                result.extend(simplify(copy(body, {variable: 0})))  # type: ignore[dict-item]
            case For(body=body):
                inner = simplify(body)
                if inner:
                    result.append(with_body(statement, inner))
            case If(Const(value), then, otherwise):
                result.extend(simplify(then if value else otherwise))
            case If(condition, then, otherwise):
                result.append(If(condition, simplify(then), simplify(otherwise)))
            case While(condition, body, limit):
                result.append(While(condition, simplify(body), limit))
            case _:
                result.append(statement)
    return tuple(result)


__all__ = [
    "ScheduleError", "at", "block", "distribute", "expand", "fuse", "hoist", "join", "name_of", "narrowest",
    "parallelize", "reorder", "simplify", "split", "strip", "unroll", "vectorize",
]  # fmt: skip
