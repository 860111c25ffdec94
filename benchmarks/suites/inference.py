"""Models forward: Ingot, with and without Winograd, beside torch and the ONNX runtimes."""

from __future__ import annotations

from typing import Any

import numpy as np

import ingot
from benchmarks import peers, work
from benchmarks.peers import Case
from benchmarks.results import OURS, Result
from benchmarks.rows import Inference
from benchmarks.suites.race import Call, Entry, Setting, add_profile, compiled, race
from ingot.compiler.ir.types import type_of

TOLERANCE = 1e-4  # relative to the range of a float64 result: a wrong formula is far outside, rounding far inside


def run(row: Inference, setting: Setting) -> Result:
    case = Case.of(row.model, row.batch)
    holder: list[Any] = []

    def ours() -> Call:
        holder.append(ingot.compile(case.module, *map(type_of, case.inputs), threads=setting.threads))
        return lambda: holder[0](*case.inputs)

    entries = {OURS: Entry(ours)}
    if row.winograd:
        entries[f"{OURS}, no Winograd"] = compiled(case.module, case.inputs, setting, winograd=False)
    for peer in peers.available(setting.threads, setting.slow):
        if isinstance(peer, peers.Jax):
            continue
        entries[peer.name] = Entry(lambda peer=peer: peer.inference(case), peer.result)
    least = work.of_inference(case.module, *map(type_of, case.inputs))
    result = race(row, entries, reference(case), TOLERANCE, setting, least)
    if holder:
        add_profile(result, holder[0], case.inputs, setting)
    return result


def run_batch(row: Inference, setting: Setting) -> Result:
    """Also with one program for every batch size."""
    case = Case.of(row.model, row.batch)

    def symbolic() -> Call:
        types = [type_of(array) for array in case.inputs]
        open_types = [t.with_shape((ingot.dim("batch"), *t.shape[1:])) for t in types]
        executable = ingot.compile(case.module, *open_types, threads=setting.threads)
        return lambda: executable(*case.inputs)

    entries = {OURS: compiled(case.module, case.inputs, setting), f"{OURS}, any batch": Entry(symbolic)}
    for peer in peers.available(setting.threads, setting.slow):
        if not isinstance(peer, peers.Jax):
            entries[peer.name] = Entry(lambda peer=peer: peer.inference(case), peer.result)
    least = work.of_inference(case.module, *map(type_of, case.inputs))
    return race(row, entries, reference(case), TOLERANCE, setting, least)


def reference(case: Case) -> np.ndarray:
    """The result in float64 by torch, or in float32 by Ingot's interpreter where torch is missing."""
    if not peers.TorchEager.installed():
        return np.asarray(ingot.interpret(case.module, *case.inputs))
    module = peers.torch_model(case, "float64").eval()
    return module(*peers.torch_tensors(case.inputs, "float64")).detach().numpy()
