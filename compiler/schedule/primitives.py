"""Rewrites of loop nests: the mechanism of scheduling. Each keeps the meaning of the statements.

    split       one loop into an outer loop of full blocks, an inner loop over a block, and a loop over the rest
    block       the same without a separate rest: the inner loop of the last block is shorter
    peel        the first few iterations, of which the program may find out how many, apart from the others
    alternate   take iterations from the halves, or other parts, in turn
    reorder     exchange two perfectly nested loops
    fuse        two perfectly nested loops into one
    join        loops one after the other into one loop over all their iterations
    distribute  a loop over several statements into one loop for each part
    unroll      a loop of constant extent into straight code (expand: at once)
    vectorize   a loop into lanes
    strip       the usual use of these: unrolled vectors, single vectors, masked rest
    parallelize iterations onto threads
    fetched_ahead   ask for what later iterations will load
    stage       copy a box of a buffer to another one before a loop, and read it there
    hoist       what does not change in a loop out of it
    simplify    loops over one or no element, and decided conditions
    at          apply a rewrite to one loop inside statements, wherever it stands

A precondition that does not hold raises ScheduleError, which names the loop. What depends on what is shown
conservatively (dependence.py): what cannot be shown is refused.
Non-goal: choosing; no rewrite looks at the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.compiler.ir import symbolic
from ingot.compiler.ir.loops import FIRST_CACHE, For, If, Let, Prefetch, Statement, Store, While, walk
from ingot.compiler.ir.scalar import Buffer, Const, Load, Local, Read, Scalar, predicate
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.traverse import nodes, statement_scalars
from ingot.compiler.schedule import build, dependence, scalars
from ingot.compiler.schedule.statements import bound_buffers, copy, loads_in, rewrite_loads, stores, with_body

LINE_BYTES = 64
PAGE = 4096  # bytes of a page; addresses so far apart look alike to a load that must not overtake a store

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


def _require_independent(loop: For, rewrite: str) -> None:
    why = dependence.conflict(loop)
    if why is not None:
        raise _refuse(loop, rewrite, why)


def _require_rectangular(loop: For, inner: For, rewrite: str) -> None:
    if loop.variable in scalars.atoms_of_dim(inner.extent):
        raise _refuse(loop, rewrite, f"the extent of the inner loop {name_of(inner)} depends on it")


def only_inner(loop: For, rewrite: str) -> For:
    """The loop that is the whole body of `loop`."""
    if len(loop.body) != 1 or not isinstance(loop.body[0], For):
        raise _refuse(loop, rewrite, "its body is not exactly one loop")
    return loop.body[0]


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


# --- iteration spaces -------------------------------------------------------------------------------------------


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
        body = copy(loop.body, {loop.variable: outer * factor + inner})
        main = For(outer, blocks, (For(inner, factor, body),))
    if rest != 0:
        last = symbolic.Variable(f"{name_of(loop)}_r", 0, rest - 1)
        tail = For(last, rest, copy(loop.body, {loop.variable: blocks * factor + last}))
    return main, tail


def block(loop: For, factor: Dim) -> For:
    """for v in n { S(v) }  ->  for o in ceil(n/f) { for i in min(f, n - f*o) { S(f*o + i) } }"""
    _require_serial(loop, "block")
    blocks = symbolic.ceildiv(loop.extent, factor)
    outer = symbolic.Variable(f"{name_of(loop)}_o", 0, blocks - 1)
    extent = symbolic.minimum(factor, loop.extent - outer * factor)
    inner = symbolic.Variable(f"{name_of(loop)}_i", 0, extent - 1)
    return For(outer, blocks, (For(inner, extent, copy(loop.body, {loop.variable: outer * factor + inner})),))


def peel(loop: For, count: Dim) -> tuple[For, For]:
    """for v in n { S(v) }  ->  for f in c { S(f) }  and  for r in n - c { S(c + r) }      c = min(count, n)"""
    _require_serial(loop, "peel")
    count = symbolic.minimum(count, loop.extent)
    first = symbolic.Variable(f"{name_of(loop)}_f", 0, count - 1)
    rest = symbolic.Variable(name_of(loop), 0, loop.extent - count - 1)
    return (
        For(first, count, copy(loop.body, {loop.variable: first})),
        For(rest, loop.extent - count, copy(loop.body, {loop.variable: count + rest})),
    )


def alternate(loop: For, parts: int = 2) -> tuple[Statement, ...]:
    """for v in n { S(v) }  ->  for i in n//p { for h in p { S(n//p*h + i) } }  and  for r in n%p { S(n//p*p + r) }

    when iterations are independent.
    """
    _require_serial(loop, "alternate")
    _require_independent(loop, "alternate")
    part, rest = loop.extent // parts, loop.extent % parts
    place = symbolic.Variable(f"{name_of(loop)}_p", 0, part - 1)
    side = symbolic.Variable(f"{name_of(loop)}_h", 0, parts - 1)
    last = symbolic.Variable(f"{name_of(loop)}_r", 0, rest - 1)
    inner = For(side, parts, copy(loop.body, {loop.variable: side * part + place}))
    return (
        *((For(place, part, (inner,)),) if part != 0 else ()),
        *((For(last, rest, copy(loop.body, {loop.variable: part * parts + last})),) if rest != 0 else ()),
    )


def reorder(loop: For) -> For:
    """for a in n { for b in m { S } }  ->  for b in m { for a in n { S } }

    when m does not depend on a and no element is stored in another order than before.
    """
    inner = only_inner(loop, "reorder")
    _require_rectangular(loop, inner, "reorder")
    why = dependence.order_changes(loop, inner)
    if why is not None:
        raise _refuse(loop, "reorder", why)
    return with_body(inner, (with_body(loop, inner.body),))


def fuse(loop: For) -> For:
    """for a in n { for b in m { S(a, b) } }  ->  for f in n*m { S(f//m, f%m) }      when m does not depend on a

    Two serial loops give a serial one, two parallel loops a parallel one.
    """
    inner = only_inner(loop, "fuse")
    if loop.kind != inner.kind or loop.kind not in ("serial", "parallel"):
        raise _refuse(loop, "fuse", f"it is {loop.kind} and the inner loop {name_of(inner)} is {inner.kind}")
    _require_rectangular(loop, inner, "fuse")
    extent = loop.extent * inner.extent
    fused = symbolic.Variable(f"{name_of(loop)}{name_of(inner)}", 0, extent - 1)
    mapping = {loop.variable: fused // inner.extent, inner.variable: fused % inner.extent}
    return For(fused, extent, copy(inner.body, mapping), loop.kind)


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
        body = copy(loop.body, {loop.variable: section - start})
        if len(rest) == 1:
            return body
        end = start + loop.extent
        return (If(predicate(section, "lt", end), body, choose(rest[1:], end)),)

    return For(section, total, choose(loops, 0), first.kind)


def _require_disjoint(loops: Sequence[For]) -> None:
    for loop in loops:
        stored = {store.buffer for store in stores(loop.body)} - bound_buffers(loop.body)
        for other in loops:
            touched = {load.buffer for load in loads_in(other.body)} | {store.buffer for store in stores(other.body)}
            if other is not loop and stored & touched:
                names = ", ".join(sorted(buffer.name for buffer in stored & touched))
                raise _refuse(loop, "join", f"loop {name_of(other)} touches {names}, which it stores")


def distribute(loop: For, cut: int) -> tuple[For, For]:
    """for v { S T }  ->  for v { S } for v { T }      cut after a number of statements

    when iterations are independent and nothing bound in S is used in T.
    """
    _require_serial(loop, "distribute")
    _require_independent(loop, "distribute")
    before, after = loop.body[:cut], loop.body[cut:]
    bound: set[Buffer | Local] = {*bound_buffers(before), *(s.local for s in before if isinstance(s, Let))}
    for used in _used(after):
        if used in bound:
            raise _refuse(loop, "distribute", f"{used.name} is bound before the cut and used after it")
    (second,) = copy((with_body(loop, after),))
    assert isinstance(second, For)
    return with_body(loop, before), second


def _used(statements: Sequence[Statement]) -> list[Buffer | Local]:
    """The buffers and locals that the statements read."""
    found: list[Buffer | Local] = []
    for statement in walk(tuple(statements)):
        for node in nodes(*statement_scalars(statement)):
            if isinstance(node, Load):
                found.append(node.buffer)
            elif isinstance(node, Read):
                found.append(node.local)
    return found


# --- kinds of loops ---------------------------------------------------------------------------------------------


def unroll(loop: For) -> For:
    """The iterations as straight code. Registers may be indexed by the variable."""
    _require_serial(loop, "unroll")
    _require_constant(loop, "unroll")
    return For(loop.variable, loop.extent, loop.body, "unrolled")


def expand(loop: For) -> tuple[Statement, ...]:
    """for v in 3 { S(v) }  ->  S(0) S(1) S(2)"""
    extent = _require_constant(loop, "expand")
    return tuple(s for n in range(extent) for s in copy(loop.body, {loop.variable: n}))


def _require_constant(loop: For, rewrite: str) -> int:
    if not isinstance(loop.extent, int):
        raise _refuse(loop, rewrite, f"its extent {loop.extent} is not constant")
    return loop.extent


def vectorize(loop: For, width: int) -> For:
    """The iterations as lanes; lanes beyond the extent are masked off.

    Iterations must be independent, and no loop inside may run differently often in different lanes.
    """
    _require_serial(loop, "vectorize")
    if symbolic.less_equal(loop.extent, width) is not True:
        raise _refuse(loop, "vectorize", f"its extent {loop.extent} is not known to be at most {width}")
    _require_independent(loop, "vectorize")
    for statement in walk(loop.body):
        if isinstance(statement, For):
            _require_rectangular(loop, statement, "vectorize")
        if isinstance(statement, While):
            raise _refuse(loop, "vectorize", "it contains a while loop")
    return For(loop.variable, loop.extent, loop.body, "vector", width)


def parallelize(loop: For) -> For:
    """The iterations on threads, in any order and at the same time; they must be independent."""
    _require_serial(loop, "parallelize")
    _require_independent(loop, "parallelize")
    return For(loop.variable, loop.extent, loop.body, "parallel")


def strip(loop: For, width: int, vectors: int = 1, interleaved: bool = False) -> tuple[Statement, ...]:
    """A loop over lanes: blocks of `vectors` unrolled vectors, then single vectors, then the masked rest.

    Interleaved ones are one vector of so many times the width: the code generator makes several registers of it and
    alternates between them, instruction by instruction.
    """
    result: list[Statement] = []
    main, tail = split(loop, width * vectors)
    if main is not None:
        whole = width * vectors if interleaved else width
        result.append(with_body(main, _whole_vectors(only_inner(main, "strip"), whole)))
    if tail is not None:
        result.extend(_rest_vectors(tail, width))
    return tuple(result)


def _whole_vectors(loop: For, width: int) -> tuple[Statement, ...]:
    """A loop whose constant extent is a multiple of the width, as unrolled vectors."""
    if loop.extent == width:
        return (vectorize(loop, width),)
    main, _ = split(loop, width)
    assert main is not None
    return (unroll(with_body(main, (vectorize(only_inner(main, "strip"), width),))),)


def _rest_vectors(loop: For, width: int) -> tuple[Statement, ...]:
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


# --- data movement ----------------------------------------------------------------------------------------------


def stage(loop: For, source: Buffer, box: Buffer, origin: Sequence[Dim]) -> tuple[Statement, ...]:
    """box[p...] = source[origin + p...] for every p of the box;  then the loop with source[i...] as box[i - origin]

    when the loop only reads the source, provably inside the box.
    """
    if any(store.buffer is source for store in stores(loop.body)):
        raise _refuse(loop, "stage", f"it stores {source.name}")

    def moved(load: Load) -> Scalar | None:
        if load.buffer is not source:
            return None
        index = tuple(i - o for i, o in zip(load.index, origin, strict=True))
        for place, extent in zip(index, box.shape, strict=True):
            if symbolic.is_nonnegative(place) is not True or symbolic.less(place, extent) is not True:
                raise _refuse(loop, "stage", f"it may read {source.name} outside the box, at {load.index}")
        return Load(box, index)

    def element(*point: Dim) -> list[Statement]:
        return [Store(box, point, Load(source, tuple(o + p for o, p in zip(origin, point, strict=True))))]

    fill = build.nest([f"p{n}" for n in range(len(box.shape))], box.shape, element)
    return (*fill, *rewrite_loads((loop,), moved))


Later = Callable[[Load], "Load | None"]  # what to ask for when something is loaded; None: nothing


def in_later_steps(variable: Dim, steps: int) -> Later:
    """Asks for what the same load reads so many steps of the variable later; nothing if that is the same."""

    def later(load: Load) -> Load | None:
        if scalars.stride(load, variable) in (0, None):
            return None
        moved = scalars.substitute(load, {variable: variable + steps})
        return moved if isinstance(moved, Load) else None

    return later


def further(bytes_: int) -> Later:
    """Asks for what lies so many bytes further on."""
    return lambda load: Load(load.buffer, (*load.index[:-1], load.index[-1] + bytes_ // load.dtype.itemsize))


def fetched_ahead(
    statements: Sequence[Statement], later: Later, locality: int = FIRST_CACHE
) -> tuple[Statement, ...]:
    """The statements with each innermost loop over vectors asking for the cache lines of what `later` says about what
    it loads from memory in order. Hints: they may lie outside."""
    return tuple(_fetching(s, later, locality) if isinstance(s, For) else s for s in statements)


def _fetching(loop: For, later: Later, locality: int) -> For:
    inside = [s for s in walk(loop.body) if isinstance(s, For)]
    if loop.kind == "parallel" or any(s.kind == "serial" for s in inside):
        return with_body(loop, fetched_ahead(loop.body, later, locality))
    if loop.kind != "serial":
        return loop
    variables = [s.variable for s in inside if not isinstance(s.variable, int)]
    hints: dict[tuple[Buffer, tuple[Dim, ...]], Statement] = {}
    for load in dict.fromkeys(loads_in(loop.body)):
        step = scalars.stride(load, loop.variable)
        walked = any(scalars.stride(load, variable) == 1 for variable in variables)
        if load.buffer.space != "global" or not walked or not isinstance(step, int) or step <= 0:
            continue
        first = scalars.substitute(load, dict.fromkeys(variables, 0))
        wanted = later(first) if isinstance(first, Load) else None
        if wanted is None:
            continue
        line = max(1, LINE_BYTES // load.dtype.itemsize)
        for place in range(0, step, line):
            index = (*wanted.index[:-1], wanted.index[-1] + place)
            hints[wanted.buffer, index] = Prefetch(wanted.buffer, index, locality)
    return with_body(loop, (*hints.values(), *loop.body))


def hoist(loop: For) -> tuple[Statement, ...]:
    """for v { let x = E; S }  ->  let x = E; for v { S }      when E does not depend on v, nor on what S stores

    A load is moved only out of a loop that provably runs: otherwise it might not have happened at all.
    """
    changing = {store.buffer for store in stores(loop.body)} | bound_buffers(loop.body)
    runs = symbolic.less_equal(1, loop.extent) is True
    staying: set[Local] = set()
    moved: list[Statement] = []
    kept: list[Statement] = []
    for statement in loop.body:
        if isinstance(statement, Let) and _invariant(statement.value, loop, changing, staying, runs):
            moved.append(statement)
            continue
        if isinstance(statement, Let):
            staying.add(statement.local)
        kept.append(statement)
    return (*moved, with_body(loop, kept))


def _invariant(value: Scalar, loop: For, changing: set[Buffer], staying: set[Local], runs: bool) -> bool:
    if loop.variable in scalars.atoms_of(value):
        return False
    for node in nodes(value):
        if isinstance(node, Load) and (node.buffer in changing or not runs):
            return False
        if isinstance(node, Read) and node.local in staying:
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
                result.extend(simplify(copy(body, {variable: 0})))
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
