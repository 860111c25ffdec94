"""Register buffers as SSA values: no memory, no promotion pass.

A register buffer is a table of slots. When vector loops index one of its axes by their variable, a slot holds the
`width` neighbours along that axis as one vector. A store replaces the slot's value; loops and branches that store
merge the values with phis.

A slot knows how many of its lanes were ever defined: a masked store over undefined lanes needs no blend.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from ingot.compiler.codegen.elements import register_type
from ingot.compiler.codegen.frame import CodegenError, Frame
from ingot.compiler.codegen.values import Block, Value, integer, poison
from ingot.compiler.ir import symbolic
from ingot.compiler.ir.scalar import Buffer
from ingot.compiler.ir.symbolic import Dim, Variable, to_text

Key = tuple[int, ...]
Place = tuple[Key, int | None]


@dataclass(frozen=True)
class Layout:
    """How a register buffer is cut into slots: `width` elements along `axis` (width 0: single elements)."""

    axis: int
    width: int


class MixedLanes(Exception):
    """A loop stores to different lanes of one slot in turn: what one round leaves undefined another defines."""


class Slot(NamedTuple):
    value: Value
    defined: Dim | None  # lanes below this were stored; None: none, or all of a scalar
    unblended: Dim | None = None  # lanes below this were stored while none were defined

    def check_carried(self, first: Slot) -> None:
        """A loop started with `first` and ends with this slot: the next round must find as little defined."""
        if first.defined is None and self.unblended is not None and self.unblended != self.defined:
            raise MixedLanes


class Registers:
    """The current value of every slot of every register buffer in reach."""

    def __init__(self, frame: Frame, layouts: dict[Buffer, Layout], strict: bool) -> None:
        self.frame = frame
        self.strict = strict
        self.layouts = layouts
        self.slots: dict[Buffer, dict[Key, Slot]] = {}
        # (buffer, identity of an index, variable of the vector loop) -> the index, kept alive; the variables in it; where
        # it points for values of these
        self._places: dict[tuple[Buffer, int, Dim | None], tuple[object, tuple[Variable, ...], dict[tuple, Place]]] = {}

    def holds(self, buffer: Buffer) -> bool:
        return buffer in self.layouts

    def allocate(self, buffer: Buffer) -> None:
        layout = self.layouts[buffer]
        kind = register_type(buffer.dtype, layout.width)
        extents = []
        for axis, extent in enumerate(buffer.shape):
            if not isinstance(extent, int):
                raise CodegenError(f"register buffer {buffer!r} must have a constant shape")
            extents.append(-(-extent // layout.width) if layout.width and axis == layout.axis else extent)
        keys = itertools.product(*map(range, extents))
        self.slots[buffer] = {key: Slot(poison(kind), None) for key in keys}

    def release(self, buffer: Buffer) -> None:
        del self.slots[buffer]

    # --- access

    def read(self, buffer: Buffer, index: tuple[Dim, ...]) -> Value:
        key, lane = self._locate(buffer, index)
        slot = self._slot(buffer, key)
        if lane is None:
            return slot.value
        return self.frame.builder.extract_element(slot.value, integer(lane))

    def write(self, buffer: Buffer, index: tuple[Dim, ...], value: Value) -> None:
        key, lane = self._locate(buffer, index)
        old = self._slot(buffer, key)
        builder, lanes = self.frame.builder, self.frame.lanes
        if lane is not None:
            inserted = builder.insert_element(old.value, value, integer(lane))
            self.slots[buffer][key] = Slot(inserted, old.value.lanes)
            return
        if not old.value.lanes:
            if lanes is not None and (value.lanes or self.frame.condition is not None):
                raise CodegenError(
                    f"every lane of a vector loop stores to the same element of register buffer {buffer!r}"
                )
            self.slots[buffer][key] = Slot(value, None)
            return
        assert lanes is not None
        if not value.lanes:
            value = self.frame.splat(value)
        is_whole = lanes.bound is None and self.frame.condition is None
        self.slots[buffer][key] = Slot(value, lanes.extent) if is_whole else self._blended(old, value)

    def _blended(self, old: Slot, value: Value) -> Slot:
        """The slot after a store in the lanes that run."""
        frame = self.frame
        assert frame.lanes is not None
        extent = frame.lanes.extent
        mask = frame.active()
        if mask is None:
            return Slot(value, extent)
        if frame.condition is None and not self.strict:
            if old.defined == extent:
                return Slot(value, extent, old.unblended)
            if old.defined is None:
                return Slot(value, extent, extent)
        return Slot(frame.builder.select(mask, value, old.value), frame.lanes.width, old.unblended)

    def _slot(self, buffer: Buffer, key: Key) -> Slot:
        try:
            return self.slots[buffer][key]
        except KeyError:
            where = "outside its shape" if buffer in self.slots else "outside the block that allocates it"
            raise CodegenError(f"register buffer {buffer!r} is used {where}, at slot {key}") from None

    def _locate(self, buffer: Buffer, index: tuple[Dim, ...]) -> Place:
        """(slot, lane inside the slot; None: the whole slot)"""
        variable = None if self.frame.lanes is None else self.frame.lanes.variable
        if not self.frame.indices.unrolled.values:
            return self._compute_place(buffer, index, variable)
        key = (buffer, id(index), variable)
        known = self._places.get(key)
        if known is None:
            found = (a for position in index for a in symbolic.atoms(position) if isinstance(a, Variable))
            known = self._places[key] = (index, tuple(dict.fromkeys(found)), {})
        _, variables, places = known
        numbers = tuple(map(self.frame.indices.unrolled.values.get, variables))
        place = places.get(numbers)
        if place is None:
            place = places[numbers] = self._compute_place(buffer, index, variable)
        return place

    def _compute_place(self, buffer: Buffer, index: tuple[Dim, ...], variable: Dim | None) -> Place:
        layout, indices = self.layouts[buffer], self.frame.indices
        key: list[int] = []
        lane: int | None = None
        for axis, position in enumerate(index):
            rest, number = indices.unrolled.parts(position)
            if rest != 0 and rest is not variable:
                raise CodegenError(
                    f"register buffer {buffer!r} is indexed by {to_text(rest + number)}, which is no constant; "
                    "unroll the loop"
                )
            if axis != layout.axis or not layout.width:
                key.append(number)
                continue
            key.append(number // layout.width)
            if rest is not variable:
                lane = number % layout.width
        return tuple(key), lane

    # --- control flow

    def stored(self, buffers: frozenset[Buffer]) -> list[tuple[Buffer, Key]]:
        """The slots in reach of register buffers that some code stores to."""
        return [(buffer, key) for buffer, slots in self.slots.items() if buffer in buffers for key in slots]

    def carry(self, slots: list[tuple[Buffer, Key]]) -> list[tuple[Slot, Value]]:
        """Enter a loop: every slot becomes the value of a phi; (slot before, phi) in order."""
        carried = []
        for buffer, key in slots:
            before = self.slots[buffer][key]
            phi = Value(before.value.type, before.value.text, self.frame.builder.fresh(), self.frame.builder.scope)
            self.slots[buffer][key] = Slot(phi, before.defined)
            carried.append((before, phi))
        return carried

    def values(self, slots: list[tuple[Buffer, Key]]) -> list[Slot]:
        return [self.slots[buffer][key] for buffer, key in slots]

    def restore(self, slots: list[tuple[Buffer, Key]], values: list[Slot]) -> None:
        for (buffer, key), value in zip(slots, values, strict=True):
            self.slots[buffer][key] = value

    def merge(
        self, slots: list[tuple[Buffer, Key]], block: Block, first: tuple[list[Slot], Block],
        second: tuple[list[Slot], Block],
    ) -> None:  # fmt: skip
        """Where two paths meet in `block`: each slot has the value of the path that was taken."""
        for place, one, other in zip(slots, first[0], second[0], strict=True):
            defined = one.defined if one.defined == other.defined else one.value.lanes or None
            value = one.value
            if one.value.ref != other.value.ref:
                value = self.frame.builder.phi(block, [(one.value, first[1]), (other.value, second[1])])
            unblended = one.unblended if one.unblended is not None else other.unblended
            self.slots[place[0]][place[1]] = Slot(value, defined, unblended)
