"""Names in the text form: made unique in the order of first use, quoted where they are no plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.types import DTYPES

_PLAIN = re.compile(r"[^\W\d][\w.]*")

# Words with a meaning where a name may stand; a name spelled like one is quoted.
RESERVED = frozenset(DTYPES) | {
    "alloc", "at", "bitcast", "bounded", "call", "cast", "code", "else", "fail", "false", "for", "function",
    "graph", "hex", "if", "in", "index", "inf", "let", "limit", "local", "locality", "max", "min", "nan",
    "none", "opaque", "parallel", "prefetch", "serial", "stream", "true", "type", "unrolled", "vector",
    "view", "while", "within",
}  # fmt: skip


def quoted(name: str) -> str:
    """The name as text: itself, or in backticks."""
    if _PLAIN.fullmatch(name) and name not in RESERVED:
        return name
    return "`" + name.replace("`", "``").replace("\n", " ") + "`"


class Names:
    """Objects with a `name` -> unique names. Names that are all different stay as they are, unless names are
    `neutral`: then only symbols keep theirs, and what differs in names alone gets the same names."""

    def __init__(self, symbols: Iterable[Symbol] = (), neutral: bool = False) -> None:
        self._neutral = neutral
        self._names: dict[object, str] = {}
        self._used: dict[str, int] = {}  # name -> how often it was wanted again
        for symbol in symbols:
            self.declare(symbol)

    def declare(self, item: object) -> str:
        """A new name for an object that is declared here, also when it was declared elsewhere before."""
        wanted = getattr(item, "name", "") or "unnamed"
        if self._neutral and not isinstance(item, Symbol):
            wanted = type(item).__name__.lower()
        self._names[item] = name = self._unique(wanted)
        return name

    def of(self, item: object) -> str:
        """The name of a symbol, variable, local, buffer or function; what nobody declared gets one too."""
        return self._names.get(item) or self.declare(item)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names declared inside may be used again afterwards."""
        names, used = dict(self._names), dict(self._used)
        yield
        self._names, self._used = names, used

    def _unique(self, wanted: str) -> str:
        name = wanted
        while name in self._used:
            self._used[wanted] += 1
            name = f"{wanted}_{self._used[wanted]}"
        self._used[name] = 0
        return name
