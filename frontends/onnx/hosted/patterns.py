"""Regular expressions in time that is linear in the text, whatever the pattern: as ONNX wants them (RE2's syntax).

Python's own engine tries alternatives one after the other, and a pattern from a file can make that take for ever. Here
all of them are followed at once, as a set of states. A single character (a class, an escape) is left to Python's engine;
what RE2 does not have (back references, looking around) is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ingot.frontends.onnx.problems import Kind, ProblemError

MOST_STATES = 20_000
MOST_REPEATS = 1000  # as in RE2
DEEPEST = 64  # groups in groups, each of which is five calls deep while a pattern is read
_UNSUPPORTED_ESCAPES = "123456789gkpPCQEG"
_ESCAPED = re.compile(r"x[0-9a-fA-F]{2}|.", re.DOTALL)


def _is_edge(text: str, place: int) -> bool:
    """Whether a word begins or ends here."""
    around = text[max(place - 1, 0) : place], text[place : place + 1]
    return len({bool(re.match(r"\w", side)) for side in around}) == 2


_ASSERTIONS: dict[str, Callable[[str, int], bool]] = {
    "^": lambda text, place: place == 0,
    "$": lambda text, place: place == len(text),
    "\\A": lambda text, place: place == 0,
    "\\z": lambda text, place: place == len(text),
    "\\b": _is_edge,
    "\\B": lambda text, place: not _is_edge(text, place),
}


@dataclass
class _State:
    """One step of the pattern: a character that `takes` it goes to the next states, or they are reached for free."""

    takes: re.Pattern[str] | None = None
    holds: Callable[[str, int], bool] | None = None
    following: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """States with one entry and one exit."""

    start: int
    end: int


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.states: list[_State] = []
        self.flags = re.NOFLAG
        self.depth = 0
        try:
            whole = self._alternatives()
        except re.error as error:
            raise self._refused(str(error)) from None
        if self.place < len(text):
            raise self._refused(f"{text[self.place]!r} at {self.place} has no beginning")
        self.start, self.end = whole.start, whole.end

    def matches(self, text: str) -> bool:
        """Whether the pattern is all of the text."""
        reached = self._closure([self.start], text, 0)
        for place, character in enumerate(text):
            taken = (s for n in reached if (s := self.states[n]).takes is not None and s.takes.fullmatch(character))
            reached = self._closure((n for s in taken for n in s.following), text, place + 1)
            if not reached:
                return False
        return self.end in reached

    def _closure(self, states: Iterable[int], text: str, place: int) -> set[int]:
        found: set[int] = set()
        work = list(states)
        while work:
            number = work.pop()
            state = self.states[number]
            if number in found or (state.holds is not None and not state.holds(text, place)):
                continue
            found.add(number)
            if state.takes is None:
                work += state.following
        return found

    # --- reading

    def _refused(self, why: str) -> ProblemError:
        return ProblemError(Kind.BAD_ATTRIBUTE, f"the pattern {self.text[:80]!r} is not a regular expression of RE2: {why}")

    def _state(self, **fields: object) -> int:
        if len(self.states) >= MOST_STATES:
            raise self._refused(f"it has more than {MOST_STATES} states")
        self.states.append(_State(**fields))  # type: ignore[arg-type]
        return len(self.states) - 1

    def _join(self, start: int, end: int) -> None:
        self.states[start].following.append(end)

    def _alternatives(self) -> _Piece:
        start, end = self._state(), self._state()
        while True:
            one = self._sequence()
            self._join(start, one.start)
            self._join(one.end, end)
            if not self.text.startswith("|", self.place):
                return _Piece(start, end)
            self.place += 1

    def _sequence(self) -> _Piece:
        start = end = self._state()
        while self.place < len(self.text) and self.text[self.place] not in "|)":
            part = self._repeated()
            self._join(end, part.start)
            end = part.end
        return _Piece(start, end)

    def _repeated(self) -> _Piece:
        before = self.place
        part = self._atom()
        after, flags = self.place, self.flags
        found = re.compile(r"[*+?]|\{(\d+)(,?)(\d*)\}").match(self.text, self.place)
        if found is None:
            return part
        self.place = found.end() + (self.text[found.end() : found.end() + 1] == "?")  # greed changes nothing for a full match
        rest = self.place
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(found[0]) or _counts(found)
        if least > MOST_REPEATS or (most is not None and not least <= most <= MOST_REPEATS):
            raise self._refused(f"{found[0]} repeats too often")
        start = end = self._state()
        exits = [end] if least == 0 else []
        for number in range(most if most is not None else max(least, 1)):
            if number:  # each repetition has states of its own
                self.place, self.flags = before, flags
                part = self._atom()
                assert self.place == after
            self._join(end, part.start)
            end = part.end
            if number + 1 >= least:
                exits.append(end)
        if most is None:
            self._join(end, part.start)
        self.place = rest
        last = self._state()
        for place in exits:
            self._join(place, last)
        return _Piece(start, last)

    def _atom(self) -> _Piece:
        text, place = self.text, self.place
        character = text[place]
        if character == "(":
            return self._group()
        if character in "*+?":
            raise self._refused(f"{character!r} at {place} repeats nothing")
        size = 1
        if character == "\\":
            size = self._escape_length()
        elif character == "[":
            size = _class_length(text, place)
        atom = text[place : place + size]
        self.place += size
        if atom in _ASSERTIONS:
            number = self._state(holds=_ASSERTIONS[atom])
            return _Piece(number, number)
        taken = self._state(takes=re.compile(atom if len(atom) > 1 or atom == "." else re.escape(atom), self.flags))
        end = self._state()
        self._join(taken, end)
        return _Piece(taken, end)

    def _escape_length(self) -> int:
        letter = self.text[self.place + 1 : self.place + 2]
        if not letter or letter in _UNSUPPORTED_ESCAPES:
            raise self._refused(f"\\{letter} at {self.place}")
        found = _ESCAPED.match(self.text, self.place + 1)  # not a copy of the rest, which may be long
        assert found is not None
        return found.end() - self.place

    def _group(self) -> _Piece:
        head = re.compile(r"\((\?(P?<\w+>|:|([is]+)(:|\))))?").match(self.text, self.place)
        assert head is not None
        if head[1] is None and self.text.startswith("(?", self.place):
            raise self._refused(f"{self.text[self.place : self.place + 3]!r} at {self.place}")
        self.place = head.end()
        outer = self.flags
        for letter in head[3] or "":
            self.flags |= {"i": re.IGNORECASE, "s": re.DOTALL}[letter]
        if head[4] == ")":  # from here on
            number = self._state()
            return _Piece(number, number)
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._refused(f"its groups are nested more than {DEEPEST} deep")
        inside = self._alternatives()
        self.depth -= 1
        if not self.text.startswith(")", self.place):
            raise self._refused("a group has no end")
        self.place += 1
        self.flags = outer
        return inside


def _counts(found: re.Match[str]) -> tuple[int, int | None]:
    least = int(found[1])
    if not found[2]:
        return least, least
    return least, int(found[3]) if found[3] else None


def _class_length(text: str, place: int) -> int:
    """Of a class in brackets; one without an end is left to be refused by Python's engine."""
    found = re.compile(r"\[\^?\]?(\\.|[^\]\\])*\]", re.DOTALL).match(text, place)
    return found.end() - place if found is not None else len(text) - place
