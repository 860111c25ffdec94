"""The order in which staggered rows are computed, and hints at the rows that come next in it.

Rows that come from several places in turn, and lines that are asked for side by side, are several series of addresses,
which arrive faster than one. Hints may lie outside of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.compiler.ir.loops import Prefetch, Statement
from ingot.compiler.ir.scalar import Buffer, Load
from ingot.compiler.ir.symbolic import Dim
from ingot.compiler.schedule import scalars
from ingot.compiler.schedule.primitives import LINE_BYTES, PAGE
from ingot.compiler.schedule.recipes.sweeps import SWEEP_VECTORS, Row, Sweep

PAGES = 8  # of what is read next, from which lines are asked for side by side


@dataclass(frozen=True)
class Order:
    """In which order rows are computed: of each block of parts the first rows of all parts, then the second ones, ..."""

    parts: int = 1
    length: int = 1  # rows of a part, of which there is more than one if there are parts

    @property
    def block(self) -> int:
        return self.parts * self.length

    def row(self, step: Dim) -> Dim:
        return step // self.block * self.block + step % self.parts * self.length + step % self.block // self.parts


@dataclass(frozen=True)
class Fetched:
    """What comes from memory: the first element of a row of so many, in terms of the row's variable of a stage."""

    load: Load
    count: int
    stage: int


@dataclass(frozen=True)
class Ahead:
    """Asks for rows in terms of the number of the step, of the row of each stage, and of the first row of all."""

    row: Row
    places: tuple[Dim, ...]
    origin: Dim
    order: Order

    def hints(self, sweeps: Sequence[Sweep], start: Dim) -> tuple[Statement, ...]:
        """As many lines of what is read for the first time as a block of vectors takes: one from each part of a row, of the
        first part several rows ahead, of the last part of the row that comes next. Rows that are asked for side by side are
        several series of addresses, which arrive faster than one. Where a core waits for memory with few lines at a time,
        parts are those of pages: its own prefetching follows one series in each page."""
        if self.row.target.has_few_line_buffers:
            return self._by_pages(sweeps, start)
        group = SWEEP_VECTORS * self.row.width
        return tuple(
            self._hint(fetched, part, start // group)
            for fetched in self._fetched(sweeps)
            if fetched.count >= group
            for part in range(_lines(fetched.load, group))
        )

    def _by_pages(self, sweeps: Sequence[Sweep], start: Dim) -> tuple[Statement, ...]:
        """Of the nearest of the pages that follow the last part, of the farthest the first."""
        group = SWEEP_VECTORS * self.row.width
        hints: list[Statement] = []
        for fetched in self._fetched(sweeps):
            load = fetched.load
            line, page = LINE_BYTES // load.dtype.itemsize, PAGE // load.dtype.itemsize
            several = _lines(load, group)
            turns = max(1, PAGES // several)  # groups until each of these pages was asked for a line
            number = (scalars.offset(self._later(fetched, 0)) + start) // group
            within = number % (page // group)
            for part in range(several):
                place = part * turns + within % turns
                index = (number // (page // group) + several * turns - place) * page
                index += place * (page // group // turns * line) + within // turns * line
                hints.append(Prefetch(load.buffer, (*(0 for _ in load.index[1:]), index)))
        return tuple(hints)

    def rest(self, sweeps: Sequence[Sweep]) -> tuple[Statement, ...]:
        """The lines of a row after those of its parts."""
        if self.row.target.has_few_line_buffers:
            return ()
        group = SWEEP_VECTORS * self.row.width
        result = []
        for fetched in self._fetched(sweeps):
            last, blocks = _lines(fetched.load, group) - 1, fetched.count // group
            lines = -(-fetched.count * fetched.load.dtype.itemsize // LINE_BYTES)
            result += [self._hint(fetched, last, line - last * blocks) for line in range((last + 1) * blocks, lines)]
        return tuple(result)

    def _fetched(self, sweeps: Sequence[Sweep]) -> list[Fetched]:
        """What is read for the first time along rows that follow each other in memory."""
        result: list[Fetched] = []
        seen: set[Buffer] = set()
        for stage, sweep in enumerate(sweeps):
            (variable,), (count,) = sweep.points.variables, sweep.points.extents
            found = dict.fromkeys(load for value in sweep.points.values for load in scalars.loads(value))
            for load in found:
                own = load.buffer.space != "global" or load.buffer in seen
                if own or scalars.stride(load, variable) != 1 or scalars.stride(load, self.places[stage]) != count:
                    continue
                first = scalars.substitute(load, {variable: 0})
                assert isinstance(count, int), "only rows of known length are staggered"
                assert isinstance(first, Load)
                result.append(Fetched(first, count, stage))
            seen |= {load.buffer for load in found}
        return result

    def _later(self, fetched: Fetched, steps: int) -> Load:
        """The first element of the row that is read so many steps later."""
        row = self.origin + self.order.row(self.row.row - fetched.stage + steps)
        found = scalars.substitute(fetched.load, {self.places[fetched.stage]: row})
        assert isinstance(found, Load)
        return found

    def _hint(self, fetched: Fetched, part: int, number: Dim) -> Prefetch:
        """Asks for the line of this number in a part of a later row."""
        group, size = SWEEP_VECTORS * self.row.width, fetched.load.dtype.itemsize
        parts = _lines(fetched.load, group)
        rows = max(1, -(-PAGES * PAGE * (parts - part) // (parts * fetched.count * size)))
        first = scalars.offset(self._later(fetched, rows))
        place = first + (part * (fetched.count // group) + number) * (LINE_BYTES // size)
        return Prefetch(fetched.load.buffer, (*(0 for _ in fetched.load.index[1:]), place))


def _lines(load: Load, elements: int) -> int:
    """Lines that so many elements take."""
    return max(1, elements * load.dtype.itemsize // LINE_BYTES)
