"""How long each kernel of a program took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KernelTime:
    name: str
    nanoseconds: float  # per run


@dataclass(frozen=True, slots=True)
class Profile:
    """Mean times over `runs` runs; `overhead` is what no kernel accounts for: checks, calls, copies."""

    kernels: tuple[KernelTime, ...]
    total_nanoseconds: float
    runs: int

    @staticmethod
    def of(names: Sequence[str], times: Sequence[int], total: int, runs: int) -> Profile:
        kernels = tuple(KernelTime(name, times[index] / runs) for index, name in enumerate(names))
        return Profile(kernels, total / runs, runs)

    @property
    def overhead_nanoseconds(self) -> float:
        return self.total_nanoseconds - sum(kernel.nanoseconds for kernel in self.kernels)

    def __str__(self) -> str:
        rows = sorted(self.kernels, key=lambda kernel: -kernel.nanoseconds)
        entries = [(kernel.name, kernel.nanoseconds) for kernel in rows]
        entries += [("(outside kernels)", self.overhead_nanoseconds), ("total", self.total_nanoseconds)]
        width = max(len(name) for name, _ in entries)
        whole = self.total_nanoseconds or 1.0
        return "\n".join(
            f"{name:<{width}}  {value / 1000:12.1f} us  {100 * value / whole:5.1f} %" for name, value in entries
        )
