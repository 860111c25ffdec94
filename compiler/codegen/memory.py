"""Loads and stores: one element, or one per lane of a vector loop.

How a vector access is made follows from how its offset changes from lane to lane: not at all (one scalar load for all
lanes), by 1 (a vector load), by constants within a few vectors, as every second element or each element twice (vector
loads and a shuffle), as in a square (squares.py), else lane by lane or by a gather.
Lanes that do not run touch nothing.

Invariant: no access reads or writes a byte that the lane-by-lane access would not touch, except bytes that lie
between two elements of the buffer that it does read.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from ingot.compiler.codegen.elements import memory_text, memory_type, vector_in_memory
from ingot.compiler.codegen.frame import CodegenError, Frame
from ingot.compiler.codegen.squares import Square, joined, square_of, transposed
from ingot.compiler.codegen.unrolled import Parts, Uses
from ingot.compiler.codegen.values import (
    I1,
    I8,
    I32,
    I64,
    Value,
    constant,
    integer,
    lane_constants,
    like,
    mangled,
    poison,
    vector_type,
)
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer, Lead
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.ir.symbolic.expression import build_sum
from ingot.compiler.ir.types import row_major_strides

Index = tuple[Dim, ...]
_Straight = tuple[Dim, Dim, int]  # difference between neighbouring lanes; rest and constant of lane 0

WIDEST_SHUFFLE = 4  # vectors: elements that lie within so many are read as whole vectors

STREAMED_BYTES = 16  # alignment that stores past the caches need on x86


class Memory:
    """Access to buffers in memory."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.builder = frame.builder
        self._strides: dict[Buffer, tuple[Dim, ...]] = {}
        self._flat: dict[tuple[Buffer, int], tuple[Index, Uses]] = {}
        self._straights: dict[tuple[Buffer, int], tuple[Index, tuple, _Straight | None]] = {}
        self._rests: dict[tuple, Parts | None] = {}

    # --- offsets

    def offset(self, buffer: Buffer, index: Index) -> Parts:
        """The flat offset of an element as (rest, constant)."""
        unrolled = self.frame.indices.unrolled
        key = (buffer, id(index))
        entry = self._flat.get(key)
        if entry is None:
            flat = _dot(index, self._strides_of(buffer, index))
            if isinstance(flat, int):
                return 0, flat
            entry = self._flat[key] = index, unrolled.uses(flat)
        return unrolled.parts_of(entry[1])

    def _straight(self, buffer: Buffer, index: Index) -> _Straight | None:
        """The flat offset where no variable in it has a value and all is affine in the lanes; else None."""
        key = (buffer, id(index))
        if key in self._flat:
            return None
        indices = self.frame.indices
        given = indices.unrolled.given, indices.lane and indices.lane.variable
        known = self._straights.get(key)
        if known is not None and known[1] == given:
            return known[2]
        if any(map(indices.unrolled.mentions, index)):
            return None
        found = self._written_out(buffer, index)
        self._straights[key] = index, given, found
        return found

    def _written_out(self, buffer: Buffer, index: Index) -> _Straight | None:
        """Statements into which a loop was written out differ in constants, and in the variable of their vector loop: all
        else is added up once for all of them."""
        unrolled, lane = self.frame.indices.unrolled, self.frame.indices.lane
        variable = None if lane is None else lane.variable
        strides = self._strides_of(buffer, index)
        step: Dim = 0
        number = 0
        rests: list[Dim] = []
        for position, stride in zip(index, strides, strict=True):
            if position is variable:
                step = step + stride
                rests.append(0)
                continue
            rest, constant = unrolled.fixed_parts(position)
            if variable is not None and variable in symbolic.atoms(rest):
                coefficient = symbolic.linear_coefficient(rest, variable)  # type: ignore[arg-type]
                if coefficient is None:
                    return None
                step = step + coefficient * stride
                rest = unrolled.unique(rest - coefficient * variable)
            if constant:
                if not isinstance(stride, int):
                    return None
                number += constant * stride
            rests.append(rest)
        key = (buffer, *map(id, rests))
        if key not in self._rests:
            flat = _dot(rests, strides)
            self._rests[key] = None if self.frame.indices.opaques(flat) else unrolled.fixed_parts(flat)
        parts = self._rests[key]
        return None if parts is None else (step, parts[0], parts[1] + number)

    def _strides_of(self, buffer: Buffer, index: Index) -> Index:
        strides = self._strides.get(buffer)
        if strides is None:
            strides = self._strides[buffer] = row_major_strides(buffer.shape)
        if len(index) != len(strides):
            raise CodegenError(f"{buffer!r} is indexed by {len(index)} numbers, it has rank {len(strides)}")
        return strides

    def is_inside(self, buffer: Buffer, index: Index) -> bool:
        """Whether the element exists for all values of the variables: then it may be read without being asked for."""
        resolve = self.frame.indices.resolve
        return all(
            symbolic.is_nonnegative(position) and symbolic.less(position, extent)
            for position, extent in zip(map(resolve, index), buffer.shape, strict=True)
        ) and all(map(self.is_harmless, index))

    def is_harmless(self, dim: Dim) -> bool:
        """Whether computing the index reads no memory and cannot fail."""
        return all(isinstance(atom.payload, Lead) for atom in self.frame.indices.opaques(dim))

    def lead(self, buffer: Buffer, size: int) -> Value:
        """How many elements come before the first address that is a multiple of a size."""
        builder = self.builder
        address = builder.index_convert("ptrtoint", self.pointer(buffer, 0, 0), I64)
        rest = builder.index_binary("and", builder.index_binary("sub", integer(0), address), integer(size - 1))
        return builder.lshr(rest, integer(buffer.dtype.itemsize.bit_length() - 1))

    def pointer(self, buffer: Buffer, rest: Dim, number: int) -> Value:
        return self.frame.indices.address(self._base(buffer), memory_text(buffer.dtype), rest, number)

    def _base(self, buffer: Buffer) -> Value:
        try:
            return self.frame.pointers[buffer]
        except KeyError:
            raise CodegenError(f"{buffer!r} is used outside the block that allocates it") from None

    # --- loads

    def load(self, buffer: Buffer, index: Index) -> Value:
        """The element in register form: a scalar when all lanes read the same, else a vector."""
        frame = self.frame
        straight = self._straight(buffer, index) if frame.condition is None else None
        if straight is not None:
            step, rest, number = straight
            mask = None if frame.lanes is None else frame.tail()
            if step == 0:
                return self._load_plain(buffer, rest, number, 0)
            if step == 1 and mask is None and frame.lanes is not None:
                return self._load_plain(buffer, rest, number, frame.lanes.width)
        offset = self.offset(buffer, index)
        if frame.lanes is None:
            return self._load_one(buffer, *offset)
        is_safe = frame.condition is None or self.is_inside(buffer, index)
        mask = frame.tail() if is_safe else frame.active()
        line = frame.indices.line(offset[0])
        if not line.varies:
            return self._load_one(buffer, *offset) if is_safe else self._load_if_any(buffer, offset, mask)
        if line.stride == 1 and mask is None:
            return self._load_plain(buffer, line.first, offset[1], frame.lanes.width)
        return self._load_lanes(buffer, offset, mask)

    def load_neighbours(self, buffer: Buffer, places: Sequence[Index]) -> Value | None:
        """The elements at some indices in every lane, in turn: where they are all side by side."""
        offsets, count = [self.offset(buffer, index) for index in places], len(places)
        rest, number = offsets[0]
        stride, first = self.frame.indices.affine(rest)
        if offsets != [(rest, number + n) for n in range(count)] or stride != count or self.frame.lanes is None:
            return None
        return self._read_vector(buffer, self.pointer(buffer, first, number), count * self.frame.lanes.width)

    def _load_one(self, buffer: Buffer, rest: Dim, number: int) -> Value:
        return self._load_plain(buffer, rest, number, 0)

    def _load_plain(self, buffer: Buffer, rest: Dim, number: int, lanes: int) -> Value:
        """One element, or so many side by side. Unrolled loops ask for the same ones many times."""
        frame, builder = self.frame, self.builder
        base = self._base(buffer)
        state = buffer, base, number, lanes, frame.version(frame.memory(buffer))
        known = builder.recall((id(rest), *state))
        if known is not None:
            return known
        element = memory_text(buffer.dtype)
        value = self._read_vector(buffer, frame.indices.address(base, element, rest, number), lanes)
        if number and not lanes and frame.lanes is not None:
            near = frame.indices.address(base, element, rest, 0)
            frame.spread[near.ref] = frame.spread.get(near.ref, 0) + 1
        if not frame.indices.opaques(rest):
            builder.remember((id(frame.indices.unrolled.unique(rest)), *state), value)
        return value

    def _read_vector(self, buffer: Buffer, pointer: Value, lanes: int) -> Value:
        kind, text, align = vector_in_memory(buffer.dtype, lanes)
        return self._read(buffer, kind, text, f"load {text}, ptr {pointer.ref}, align {align}", (pointer,))

    def _read(self, buffer: Buffer, kind: ir.Type, text: str, body: str, operands: tuple[Value, ...]) -> Value:
        """The result of a reading instruction in register form: bool from a byte to a truth value."""
        memory = self.frame.memory(buffer)
        value = self.builder.read(kind, text, body, operands, memory, self.frame.version(memory))
        if buffer.dtype.kind == "bool":
            return self.builder.icmp("!=", value, constant(value.type, 0), "u")
        return value

    def _load_if_any(self, buffer: Buffer, offset: Parts, mask: Value | None) -> Value:
        """One element for all lanes, read only if some lane wants it."""
        assert mask is not None
        builder = self.builder
        pointer = self.pointer(buffer, *offset)
        wanted = self.frame.any_lane(mask)
        before, after = builder.block, builder.new_block("loaded")
        scope = builder.enter("wanted", barrier=True)
        builder.cbranch_from(before, wanted, scope.block, after)
        value = self._read_vector(buffer, pointer, 0)
        end = builder.block
        builder.branch(after)
        builder.leave(after)
        return builder.phi(after, [(poison(value.type), before), (value, end)])

    def _load_lanes(self, buffer: Buffer, offset: Parts, mask: Value | None) -> Value:
        frame = self.frame
        assert frame.lanes is not None
        rest, number = offset
        stride, first = frame.indices.affine(rest)
        if stride == 1:
            pointer = self.pointer(buffer, first, number)
            if mask is None:
                return self._read_vector(buffer, pointer, frame.lanes.width)
            if self._is_prefix(mask):
                return self._load_part(buffer, pointer, self._prefix(), mask)
            return self._masked(buffer, pointer, mask)
        square = self._square(rest) if stride is None else None
        if square is not None and 1 in (square.down, square.along):
            return self._load_square(buffer, square, number, mask)
        if mask is None or self._is_prefix(mask):
            near = self._near_places(rest, frame.lanes.width if mask is None else self._prefix())
            if near is not None:
                return self._load_near(buffer, near[0], number, near[1])
        if stride is not None and mask is None and not self._prefers_gather(buffer):
            return self._load_each(buffer, first, number, stride)
        return self._gather(buffer, self._pointers(buffer, offset), mask)

    def _square(self, rest: Dim) -> Square | None:
        lanes = self.frame.lanes
        assert lanes is not None
        return square_of(rest, lanes.variable, lanes.width) if self.is_harmless(rest) else None

    def _load_square(self, buffer: Buffer, square: Square, number: int, mask: Value | None) -> Value:
        """Vectors along the side that is contiguous; transposed in registers when these are columns."""
        apart = square.down if square.along == 1 else square.along
        size = square.size
        parts = []
        for n in range(size):
            pointer = self.pointer(buffer, *_moved(square.first, number, n * apart))
            if mask is None:
                parts.append(self._read_vector(buffer, pointer, size))
            else:
                lanes = range(n * size, (n + 1) * size) if square.along == 1 else range(n, size * size, size)
                parts.append(self._masked(buffer, pointer, self.builder.shuffle(mask, None, lanes)))
        return joined(self.builder, parts if square.along == 1 else transposed(self.builder, parts))

    def _store_square(self, buffer: Buffer, square: Square, number: int, value: Value) -> None:
        for n in range(square.size):
            part = self.builder.shuffle(value, None, range(n * square.size, (n + 1) * square.size))
            self._write(buffer, self.pointer(buffer, *_moved(square.first, number, n * square.down)), part)

    def _is_prefix(self, mask: Value) -> bool:
        """Whether the lanes are those below the loop's constant extent, which need no mask."""
        tail = self.frame.tail() if mask.scope is None else None
        return tail is not None and mask.ref == tail.ref

    def _load_part(self, buffer: Buffer, pointer: Value, count: int, mask: Value | None = None) -> Value:
        """The first lanes: plain loads of powers of two, or one masked load if that is less."""
        assert self.frame.lanes is not None
        width, pieces = self.frame.lanes.width, _pieces(count)
        if len(pieces) > 1 and self.frame.target.has_mask_for(buffer.dtype.itemsize):
            return self._masked(buffer, pointer, mask or lane_constants(I1, [lane < count for lane in range(width)]))
        builder, element = self.builder, memory_text(buffer.dtype)
        result: Value | None = None
        for start, size in pieces:
            place = builder.offset(pointer, element, integer(start)) if start else pointer
            part = builder.shuffle(self._read_vector(buffer, place, size), None, _placed(0, size, width))
            if result is None:
                result = part
            else:
                lanes = [lane if lane < start else width + lane - start for lane in range(start + size)]
                result = builder.shuffle(result, part, lanes + [-1] * (width - len(lanes)))
        assert result is not None
        return result

    def _prefix(self) -> int:
        assert self.frame.lanes is not None
        assert isinstance(self.frame.lanes.extent, int)
        return self.frame.lanes.extent

    def _store_part(self, buffer: Buffer, pointer: Value, value: Value) -> None:
        """The lanes below a constant extent; some processors take ten times longer for a masked store."""
        builder, element = self.builder, memory_text(buffer.dtype)
        for start, size in _pieces(self._prefix()):
            place = builder.offset(pointer, element, integer(start)) if start else pointer
            self._write(buffer, place, builder.shuffle(value, None, range(start, start + size)))

    def _masked(self, buffer: Buffer, pointer: Value, mask: Value) -> Value:
        kind = memory_type(buffer.dtype, mask.lanes)
        name = f"llvm.masked.load.{mangled(kind)}.p0"
        function = self.builder.program.declare(name, str(kind), f"ptr, {mask.text}, {kind}")
        align = buffer.dtype.itemsize
        body = f"call {kind} {function}(ptr align {align} {pointer.ref}, {mask!r}, {kind} zeroinitializer)"
        return self._read(buffer, kind, str(kind), body, (pointer, mask))

    def _near_places(self, rest: Dim, count: int) -> tuple[Dim, list[int]] | None:
        """(common, places): lane n of the first `count` reads common + places[n], all of which lie within a few
        vectors; None when they do not, or are not known."""
        lanes = self.frame.lanes
        assert lanes is not None
        if isinstance(rest, int) or any(map(self.frame.indices.varying_opaque, self.frame.indices.opaques(rest))):
            return None
        own = {lanes.variable}
        varying: Dim = 0
        for factors, coefficient in rest.terms:
            if any(lanes.variable in symbolic.atoms(atom) for atom, _ in factors):
                if any(symbolic.atoms(atom) != own for atom, _ in factors):
                    return None
                varying = varying + build_sum(((factors, coefficient),), 0)
        found = [symbolic.evaluate(varying, {lanes.variable: lane}) for lane in range(count)]
        return (rest - varying, found) if max(found) - min(found) < WIDEST_SHUFFLE * lanes.width else None

    def _load_near(self, buffer: Buffer, common: Dim, number: int, places: Sequence[int]) -> Value:
        """Whole vectors from the first wanted element to the last, and shuffles that pick; reads nothing beyond."""
        assert self.frame.lanes is not None
        number += min(places)
        places = [place - min(places) for place in places]
        width, span = self.frame.lanes.width, max(places) + 1
        if span <= width:
            only = self._load_part(buffer, self.pointer(buffer, common, number), span)
            return self.builder.shuffle(only, None, [*places, *[-1] * (width - len(places))])
        starts = [min(part * width, span - width) for part in range(-(-span // width))]
        parts = [self._read_vector(buffer, self.pointer(buffer, common, number + start), width) for start in starts]
        owner = [next(n for n, start in enumerate(starts) if place < start + width) for place in places]
        lanes = [place - starts[n] + n * width if n < 2 else 0 for place, n in zip(places, owner, strict=True)]
        rest = [-1] * (width - len(places))
        picked = self.builder.shuffle(parts[0], parts[1], [*lanes, *rest])
        for part in range(2, len(parts)):
            lanes = [
                width + place - starts[part] if n == part else lane
                for lane, (place, n) in enumerate(zip(places, owner, strict=True))
            ]
            picked = self.builder.shuffle(picked, parts[part], [*lanes, *rest])
        return picked

    def _load_each(self, buffer: Buffer, first: Dim, number: int, stride: Dim) -> Value:
        """One scalar load a lane."""
        assert self.frame.lanes is not None
        width = self.frame.lanes.width
        places = [_moved(first, number, lane * stride) for lane in range(width)]
        elements = [self._load_one(buffer, *place) for place in places]
        result = poison(vector_type(elements[0].type, width))
        for lane, element in enumerate(elements):
            result = self.builder.insert_element(result, element, integer(lane))
        return result

    def _prefers_gather(self, buffer: Buffer) -> bool:
        return self.frame.target.has_gather and buffer.dtype.bits >= 32

    def _pointers(self, buffer: Buffer, offset: Parts) -> Value:
        """One address per lane."""
        element = memory_text(buffer.dtype)
        base = self.pointer(buffer, 0, offset[1])
        return self.builder.offset(base, element, self.frame.splat(self.frame.indices.lanes(offset[0])))

    def _gather(self, buffer: Buffer, pointers: Value, mask: Value | None) -> Value:
        kind = memory_type(buffer.dtype, pointers.lanes)
        active = mask or constant(vector_type(I1, pointers.lanes), 1)
        name = f"llvm.masked.gather.{mangled(kind)}.{mangled(pointers.type)}"
        function = self.builder.program.declare(name, str(kind), f"{pointers.text}, {active.text}, {kind}")
        aligned = f"{pointers.text} align {buffer.dtype.itemsize} {pointers.ref}"
        body = f"call {kind} {function}({aligned}, {active!r}, {kind} zeroinitializer)"
        return self._read(buffer, kind, str(kind), body, (pointers, active))

    # --- stores

    def store(self, buffer: Buffer, index: Index, value: Value, streaming: bool = False) -> None:
        if buffer.dtype.kind == "bool":
            value = self.builder.zext(value, like(value.type, I8))
        straight = None if streaming else self._straight(buffer, index)
        if straight is not None and self._store_straight(buffer, straight, value):
            return
        offset = self.offset(buffer, index)
        if self.frame.lanes is None:
            self._write(buffer, self.pointer(buffer, *offset), value)
        elif self.frame.indices.varies(offset[0]):
            self._store_lanes(buffer, offset, self.frame.splat(value), streaming)
        else:
            raise CodegenError(
                f"every lane of a vector loop stores to the same element of {buffer!r}; reduce to a register first"
            )
        self.frame.written({self.frame.memory(buffer)})

    def _store_straight(self, buffer: Buffer, straight: _Straight, value: Value) -> bool:
        """One element, or one for each of all lanes, side by side; False where it is neither."""
        frame = self.frame
        step, rest, number = straight
        if frame.lanes is not None:
            if step != 1 or frame.lanes.bound is not None or frame.condition is not None:
                return False
            value = frame.splat(value)
        self._write(buffer, self.pointer(buffer, rest, number), value)
        frame.written({frame.memory(buffer)})
        return True

    def _write(self, buffer: Buffer, pointer: Value, value: Value, attributes: str = "") -> None:
        self.builder.effect(f"store {value!r}, ptr {pointer.ref}, align {buffer.dtype.itemsize}{attributes}")

    def _store_lanes(self, buffer: Buffer, offset: Parts, value: Value, streaming: bool) -> None:
        frame = self.frame
        mask = frame.active()
        rest, number = offset
        stride, first = frame.indices.affine(rest)
        if stride == 1:
            pointer = self.pointer(buffer, first, number)
            if mask is not None and self._is_prefix(mask):
                self._store_part(buffer, pointer, value)
            elif mask is not None:
                name = f"llvm.masked.store.{mangled(value.type)}.p0"
                function = self.builder.program.declare(name, "void", f"{value.text}, ptr, {mask.text}")
                aligned = f"ptr align {buffer.dtype.itemsize} {pointer.ref}"
                self.builder.effect(f"call void {function}({value!r}, {aligned}, {mask!r})")
            elif streaming:
                self._stream(buffer, pointer, value)
            else:
                self._write(buffer, pointer, value)
        elif stride is not None and mask is None and not self._prefers_gather(buffer):
            for lane in range(value.lanes):
                element = self.builder.extract_element(value, integer(lane))
                self._write(buffer, self.pointer(buffer, *_moved(first, number, lane * stride)), element)
        else:
            square = None if stride is not None or mask is not None else self._square(rest)
            if square is not None and square.along == 1:
                self._store_square(buffer, square, number, value)
            else:
                self._scatter(buffer, self._pointers(buffer, offset), value, mask)

    def _scatter(self, buffer: Buffer, pointers: Value, value: Value, mask: Value | None) -> None:
        active = mask or constant(vector_type(I1, pointers.lanes), 1)
        name = f"llvm.masked.scatter.{mangled(value.type)}.{mangled(pointers.type)}"
        function = self.builder.program.declare(name, "void", f"{value.text}, {pointers.text}, {active.text}")
        aligned = f"{pointers.text} align {buffer.dtype.itemsize} {pointers.ref}"
        self.builder.effect(f"call void {function}({value!r}, {aligned}, {active!r})")

    def _stream(self, buffer: Buffer, pointer: Value, value: Value) -> None:
        """Past the caches. x86 can do so only at aligned addresses, which is known when the program runs. Sixteen
        bytes are enough, and what NumPy gives every array; whole registers are better, and recipes begin where a line does."""
        builder = self.builder
        builder.program.metadata["!0"] = "!{i32 1}"
        self.frame.streams = True
        if not self.frame.target.is_x86:
            self._write(buffer, pointer, value, ", !nontemporal !0")
            return
        size, wide = value.lanes * buffer.dtype.itemsize, self.frame.target.vector_bytes
        widths = sorted({min(width, size) for width in (wide, STREAMED_BYTES)}, reverse=True)
        address = builder.index_convert("ptrtoint", pointer, I64)
        scope, after = builder.scope, builder.new_block("stored")

        def attempt(widths: Sequence[int]) -> None:
            """Pieces of the first width to which the address is aligned: registers at once, or smaller ones."""
            if not widths:
                builder.effect(f"store {value!r}, ptr {pointer.ref}, align {buffer.dtype.itemsize}")
                builder.branch(after)
                return
            width, *others = widths
            rest = builder.index_binary("and", address, integer(width - 1))
            is_aligned = builder.icmp("==", rest, integer(0), "u")
            tested = builder.block
            heads = [builder.enter("streaming", barrier=True).block]
            for start in range(0, size, width):
                self._stream_part(buffer, pointer, value, start, width)
            builder.branch(after)
            builder.leave()
            heads.append(builder.enter("unaligned", barrier=True).block)
            attempt(others)
            builder.leave()
            builder.cbranch_from(tested, is_aligned, heads[0], heads[1])

        attempt(widths)
        scope.block = after

    def _stream_part(self, buffer: Buffer, pointer: Value, value: Value, start: int, count: int) -> None:
        """So many bytes of the value, which are aligned in memory."""
        itemsize = buffer.dtype.itemsize
        first, lanes = start // itemsize, count // itemsize
        if lanes < value.lanes:
            value = self.builder.shuffle(value, None, range(first, first + lanes))
        place = self.builder.offset(pointer, memory_text(buffer.dtype), integer(first)) if first else pointer
        self.builder.effect(f"store {value!r}, ptr {place.ref}, align {count}, !nontemporal !0")

    def prefetch(self, buffer: Buffer, index: Index, locality: int) -> None:
        straight = self._straight(buffer, index)
        if straight is not None:
            stride, first, number = straight
        else:
            rest, number = self.offset(buffer, index)
            stride, first = self.frame.indices.affine(rest)
        if stride is None:
            return  # a hint for scattered addresses is worth less than computing them
        pointer = self.pointer(buffer, first, number)
        read, data = constant(I32, 0), constant(I32, 1)
        self.builder.call_effect("llvm.prefetch.p0", "void", pointer, read, constant(I32, locality), data)


def _dot(index: Sequence[Dim], strides: Index) -> Dim:
    total: Dim = 0
    for position, stride in zip(index, strides, strict=True):
        total = total + position * stride
    return total


def _moved(rest: Dim, number: int, distance: Dim) -> Parts:
    """The offset `distance` elements further on."""
    if isinstance(distance, int):
        return rest, number + distance
    total = rest + distance
    if isinstance(total, int):
        return 0, number + total
    return total - total.constant, number + total.constant


def _pieces(extent: int) -> list[tuple[int, int]]:
    """(start, size) of powers of two that add up to the extent, the largest first."""
    pieces, start = [], 0
    while start < extent:
        size = 1 << ((extent - start).bit_length() - 1)
        pieces.append((start, size))
        start += size
    return pieces


def _placed(start: int, size: int, width: int) -> list[int]:
    """A shuffle that puts `size` lanes at `start` and leaves the others undefined."""
    return [lane - start if start <= lane < start + size else -1 for lane in range(width)]
