"""Measures rows in a process of its own, already pinned: `python -m benchmarks.worker JOB.json RESULTS.jsonl`.

Every finished row is written at once, so that a crash in one loses no other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import peers, probe, rows
from benchmarks.measure import Effort
from benchmarks.probe import Bandwidth, Machine
from benchmarks.results import Result
from benchmarks.suites import inference, kernels, processes, quantised, training
from benchmarks.suites.race import Setting, describe
from ingot.compiler.target import Target

RUNNERS: dict[str, Callable[[Any, Setting], Result]] = {
    "inference": inference.run,
    "training": training.run,
    "batch": inference.run_batch,
    "threads": processes.run_threads,
    "gemm": kernels.run_gemm,
    "int8": kernels.run_integers,
    "quantised": quantised.run,
    "conv": kernels.run_convolution,
    "stream": kernels.run_stream,
    "compile": processes.run_compile,
    "memory": processes.run_memory,
    "overhead": kernels.run_overhead,
}


def main(job_path: str, results_path: str) -> None:
    job = json.loads(Path(job_path).read_text())
    results = Path(results_path)
    effort = Effort(job["seconds"], job["turns"], job["busy"])
    if job["suite"] == "probe":
        target = Target.host()
        kind = {"cpu": target.cpu, "vector_bits": 8 * target.vector_bytes}
        machine = {**asdict(probe.measure(effort)), **kind}
        results.write_text(json.dumps({"machine": machine, "versions": peers.versions()}))
        return
    setting = Setting(job["threads"], effort, job["slow"], machine_of(job["machine"]), job["profile"])
    with results.open("a") as file:
        for row in rows.select(job["suite"], job["keys"]):
            try:
                result = RUNNERS[job["suite"]](row, setting)
            except Exception as error:
                result = Result(row.key, row.title, failure=describe(error))
            file.write(json.dumps(result.to_json()) + "\n")
            file.flush()


def machine_of(data: dict[str, Any]) -> Machine:
    return Machine(data["fma"], tuple(Bandwidth(**level) for level in data["levels"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
