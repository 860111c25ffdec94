"""What a measurement found, as plain data that goes to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "Ingot"
NO_PEERS = ("NumPy",)  # shown for scale: they compile nothing


@dataclass
class Contender:
    """Seconds of a call and the error of its result; or why there is no number."""

    best: float = math.nan
    median: float = math.nan
    calls: int = 0
    error: float | None = None
    failure: str = ""

    @property
    def ran(self) -> bool:
        return not self.failure and not math.isnan(self.best)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Contender:
        missing = {name: math.nan for name in ("best", "median") if data[name] is None}
        return Contender(**{**data, **missing})


@dataclass
class Result:
    """A row. A race has contenders; other rows have named values only."""

    key: str
    title: str
    contenders: dict[str, Contender] = field(default_factory=dict)
    limit: float | None = None  # seconds that the machine needs at least
    limit_median: float | None = None  # the same as a median, if the limit took turns with the contenders
    limited_by: str = ""
    operations: float = 0.0
    values: dict[str, Any] = field(default_factory=dict)
    profile: list[tuple[str, float]] = field(default_factory=list)  # kernels and their microseconds, slowest first
    failure: str = ""

    @property
    def ours(self) -> Contender | None:
        found = self.contenders.get(OURS)
        return found if found and found.ran else None

    @property
    def peers(self) -> dict[str, Contender]:
        """Contenders that are not variants of ours, and ran."""
        return {name: c for name, c in self.contenders.items() if c.ran and not is_ours(name) and name not in NO_PEERS}

    @property
    def best_peer(self) -> tuple[str, Contender] | None:
        return min(self.peers.items(), key=lambda item: item[1].best, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the best peer."""
        peer = self.best_peer
        return peer[1].best / self.ours.best if peer and self.ours else None

    @property
    def median_ratio(self) -> float | None:
        """The same for medians, against the peer whose median is best."""
        medians = [peer.median for peer in self.peers.values()]
        return min(medians) / self.ours.median if medians and self.ours else None

    @property
    def share(self) -> float | None:
        """Of the machine's limit, 0 to 1; algorithms that compute less than the definition can pass 1."""
        return self.limit / self.ours.best if self.limit and self.ours else None

    @property
    def median_share(self) -> float | None:
        """The same for medians, where the limit was measured in the same minutes."""
        return self.limit_median / self.ours.median if self.limit_median and self.ours else None

    def to_json(self) -> dict[str, Any]:
        return _plain(asdict(self))

    @staticmethod
    def from_json(data: dict[str, Any]) -> Result:
        contenders = {name: Contender.from_json(found) for name, found in data["contenders"].items()}
        profile = [(name, value) for name, value in data["profile"]]
        return Result(**{**data, "contenders": contenders, "profile": profile})


def is_ours(name: str) -> bool:
    return name == OURS or name.startswith(f"{OURS},")


def _plain(item: Any) -> Any:
    """JSON has no NaN and no infinity; null stands for a number that is not there."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_plain(value) for value in item]
    if isinstance(item, float) and not math.isfinite(item):
        return None
    return item


@dataclass
class Suite:
    """All rows of a suite and what they were measured on."""

    name: str
    rows: list[Result]
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    threads: int = 1
    date: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**_plain(asdict(self)), "rows": [row.to_json() for row in self.rows]}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Suite:
        return Suite(**{**data, "rows": [Result.from_json(row) for row in data["rows"]]})

    @property
    def ratios(self) -> list[float]:
        return [row.ratio for row in self.rows if row.ratio is not None]


def geometric_mean(numbers: Iterable[float]) -> float | None:
    logarithms = [math.log(n) for n in numbers]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None
