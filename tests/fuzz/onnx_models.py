"""Fuzz the ONNX importer: `python -m tests.fuzz.onnx_models --seconds 600`.

The corpus is the official suite. Each candidate is compiled and run in a limited process (onnx_worker.py); anything
but an answer or an error raised on purpose is a finding, written to a folder with the seed that makes it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.frontends.onnx.cases import Case, all_cases, ops_of
from tests.frontends.onnx.microsoft_models import microsoft_models
from tests.fuzz.onnx_mutation import mutated
from tests.fuzz.onnx_worker import Limits, Outcome, Worker

LARGEST_MODEL = 1 << 14  # bytes: small files break in more places per second


@dataclass(frozen=True)
class Entry:
    """A sound model and inputs for it."""

    name: str
    model: bytes
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Finding:
    seed: int
    entry: str
    model: bytes
    outcome: Outcome

    def __str__(self) -> str:
        return f"seed {self.seed}, from {self.entry}: {self.outcome.kind}\n{self.outcome.detail}"


Corpus = list[list[Entry]]  # models of the same ops together, so that each op comes as often as any other


def corpus(cases: Iterable[Case]) -> Corpus:
    """The suite's models in memory, those that are small; and one of every com.microsoft op."""
    found: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for case in cases:
        if case.data and len(case.model) <= LARGEST_MODEL and "_expanded" not in case.name:
            found[ops_of(case)].append(Entry(case.name, case.model, inputs_of(case)))
    others = [[Entry(f"microsoft_{n}", m.SerializeToString(), dict(i))] for n, (m, i) in microsoft_models().items()]
    return [*found.values(), *others]


def inputs_of(case: Case) -> dict[str, Any]:
    assert case.data
    names = [i.name for i in case.proto.graph.input]
    given = {n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in zip(names, case.data[0][0], strict=False)}
    return {n: v for n, v in given.items() if isinstance(v, np.ndarray | list)}


def candidate_of(seed: int, entries: Corpus) -> tuple[Entry, bytes]:
    random = Random(seed)
    entry = random.choice(random.choice(entries))
    return entry, mutated(entry.model, [random.choice(random.choice(entries)).model for _ in range(3)], random)


def findings(seeds: Iterable[int], entries: Corpus, limits: Limits, counts: Counter[str]) -> Iterator[Finding]:
    """What is wrong with these seeds; `counts` is told how each candidate ended."""
    with Worker() as worker:
        for seed in seeds:
            entry, model = candidate_of(seed, entries)
            outcome = worker.attempt(model, entry.inputs, limits, seed)
            counts[outcome.kind] += 1
            if not outcome.is_fine:
                yield Finding(seed, entry.name, model, outcome)


def _until(end: float, first: int) -> Iterator[int]:
    while time.monotonic() < end:
        yield first
        first += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.onnx_models", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    arguments = parser.parse_args()
    entries = corpus(all_cases(Path(tempfile.gettempdir()) / "ingot-onnx-corpus"))
    counts: Counter[str] = Counter()
    seeds = _until(time.monotonic() + arguments.seconds, arguments.first)
    failures = 0
    for finding in findings(seeds, entries, Limits(), counts):
        failures += 1
        arguments.folder.mkdir(parents=True, exist_ok=True)
        (arguments.folder / f"seed{finding.seed}.onnx").write_bytes(finding.model)
        print(f"--- {finding}", flush=True)
    ended = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    models = sum(map(len, entries))
    print(f"{failures} of {sum(counts.values())} candidates from {models} models are findings ({ended})")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
