"""Training steps: forward, backward and optimiser; the losses of the first steps are compared with float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import ingot
from benchmarks import peers, work
from benchmarks.peers import Case
from benchmarks.results import OURS, Result
from benchmarks.rows import Training
from benchmarks.suites.race import Call, Entry, Setting, add_profile, race
from ingot import optim
from ingot.compiler.ir.types import type_of

TOLERANCE = 1e-3
STEPS = 3  # losses compared: the second depends on all gradients of the first
SLOTS = {"sgd": 1, "adam": 2, "adamw": 2}


def optimizer(row: Training) -> optim.Optimizer:
    match row.optimizer:
        case "sgd":
            return optim.SGD(row.rate, momentum=0.9)
        case "adam":
            return optim.Adam(row.rate)
        case "adamw":
            return optim.AdamW(row.rate, weight_decay=1e-2)
    raise ValueError(f"no optimiser is called {row.optimizer!r}")


def trainer(case: Case, row: Training, threads: int, **choices: Any) -> ingot.Trainer:
    assert case.definition.loss is not None
    types = map(type_of, case.batch)
    return ingot.Trainer(case.module, case.definition.loss, optimizer(row), *types, threads=threads, **choices)


class First:
    """A step whose first call makes the first steps and returns their losses; later calls make one each."""

    def __init__(self, step: Call) -> None:
        self.step = step
        self.fresh = True

    def __call__(self) -> Any:
        if not self.fresh:
            return self.step()
        self.fresh = False
        return [float(self.step()) for _ in range(STEPS)]


def run(row: Training, setting: Setting) -> Result:
    case = Case.of(row.model, row.batch)
    case.arrays  # noqa: B018  kept before a trainer changes them
    least = work.of_training(case.module, SLOTS[row.optimizer], *map(type_of, _forward_arguments(case)))
    holder: list[Any] = []

    def ours() -> Call:
        holder.append(trainer(case, row, setting.threads))
        return First(lambda: holder[0].step(*case.batch))

    entries = {OURS: Entry(ours)}
    for peer in peers.available(setting.threads, setting.slow):
        if not isinstance(peer, peers.OnnxPeer):
            entries[peer.name] = Entry(lambda peer=peer: First(peer.training(case, row)))
    result = race(row, entries, reference(case, row), TOLERANCE, setting, least)
    if holder:
        add_profile(result, holder[0].executable, case.batch, setting)
    return result


def _forward_arguments(case: Case) -> tuple[np.ndarray, ...]:
    """What the model itself takes: a VAE also its noise."""
    return case.batch if case.name == "vae" else case.inputs


def reference(case: Case, row: Training) -> np.ndarray | None:
    if not peers.TorchEager.installed():
        return None
    return np.array(First(peers.torch_step(case, row, "float64"))())
