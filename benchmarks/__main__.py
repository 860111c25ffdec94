"""Ingot beside its peers.

    python -m benchmarks [SUITE ...] [--rows a,b] [--quick] [--threads N] [--output DIR]

Suites: inference, training, batch, threads, gemm, int8, quantised, conv, stream, compile, memory, overhead; or all. Rows of a suite
are listed with --list. Each row (or suite of small rows) runs in a process of its own, pinned to as many cores as it has
threads; this process only starts them and shows what they found.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import readme, report
from benchmarks.results import Result, Suite
from benchmarks.rows import SEPARATE, SUITES, Row, select

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 3600  # seconds for one process
TURNS = 25  # of each contender at least: the best of fewer calls is a matter of luck on a machine that others use
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
EVERY_CORE = ("compile", "memory")  # compiling uses what the machine has


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    default = ["inference", "training"]
    parser.add_argument("suites", nargs="*", default=default, metavar="SUITE", help="default: inference training")
    parser.add_argument("--rows", default="", help="only rows with these keys, separated by commas")
    parser.add_argument("--list", action="store_true", help="list suites and rows, then stop")
    parser.add_argument("--quick", action="store_true", help="a tenth of a second for each contender")
    parser.add_argument("--seconds", type=float, help="seconds for each contender of a row (default 2)")
    parser.add_argument("--threads", type=int, default=1, help="threads for everyone (default 1)")
    parser.add_argument("--slow", action="store_true", help="also torch.compile, up to a minute a row")
    parser.add_argument("--busy", action="store_true", help="count processor time: for a machine that others use")
    parser.add_argument("--no-profile", action="store_true", help="do not profile Ingot's kernels afterwards")
    parser.add_argument("--readme", action="store_true", help="afterwards, put the tables of inference and training into README.md")
    parser.add_argument("--output", type=Path, default=Path("out/benchmarks"), help="folder for what is written")
    chosen = parser.parse_args(given)
    if "all" in chosen.suites:
        chosen.suites = list(SUITES)
    unknown = sorted(set(chosen.suites) - set(SUITES))
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)} and all")
    chosen.keys = [key for key in chosen.rows.split(",") if key]
    strange = [key for key in chosen.keys if not any(select(suite, [key]) for suite in chosen.suites)]
    if strange:
        parser.error(f"no such row: {', '.join(strange)}; --list shows them")
    return chosen


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    console = Console(width=None if sys.stdout.isatty() else 200)
    if chosen.list:
        for suite in chosen.suites:
            for row in SUITES[suite]:
                console.print(f"{suite:<10} {row.key:<18} {row.title}", markup=False, highlight=False)
        return 0
    runner = Runner(chosen, console)
    failed = 0
    for name in chosen.suites:
        if not select(name, chosen.keys):
            continue
        suite = runner.suite(name)
        report.show(suite, console)
        report.write(suite, chosen.output)
        failed += len(report.failures(suite))
    console.print(f"written to {chosen.output}", markup=False)
    if chosen.readme:
        readme.update(ROOT / "README.md", chosen.output)
    return 1 if failed else 0


class Runner:
    """Starts measuring processes and collects their results."""

    def __init__(self, chosen: argparse.Namespace, console: Console) -> None:
        self.chosen = chosen
        self.console = console
        self.seconds = chosen.seconds or (0.1 if chosen.quick else 2.0)
        self.allowed = sorted(os.sched_getaffinity(0))
        self.machine, self.versions = self._probe()

    def _probe(self) -> tuple[dict[str, Any], dict[str, str]]:
        seconds = 0.05 if self.chosen.quick else 0.5
        job = {"suite": "probe", "seconds": seconds, "turns": 1, "busy": self.chosen.busy}
        found = self._process(job, 1)
        if not found:
            raise SystemExit(f"the machine could not be probed: {self.last_words}")
        return {**found[0]["machine"], "name": processor_name()}, found[0]["versions"]

    def suite(self, name: str) -> Suite:
        threads = max(2, self.chosen.threads) if name == "threads" else self.chosen.threads
        results: list[Result] = []
        for group in self._groups(name):
            titles = group[0].title if len(group) == 1 else f"{len(group)} rows"
            with self.console.status(f"{name}: {titles}"):
                results += self._measured(name, group, threads)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        return Suite(name, results, self.machine, self.versions, threads, date)

    def _groups(self, name: str) -> Iterator[list[Row]]:
        rows = select(name, self.chosen.keys)
        if name in SEPARATE:
            yield from ([row] for row in rows)
        else:
            yield rows

    def _measured(self, name: str, group: list[Row], threads: int) -> list[Result]:
        """The results of a group; when its process dies, the row it died in says so and the rest is taken up again."""
        found: list[Result] = []
        while len(found) < len(group):
            remaining = group[len(found) :]
            job = {
                "suite": name, "keys": [row.key for row in remaining], "threads": threads, "seconds": self.seconds,
                "turns": 2 if self.chosen.quick else TURNS, "busy": self.chosen.busy, "slow": self.chosen.slow,
                "machine": self.machine, "profile": not self.chosen.no_profile,
            }  # fmt: skip
            cores = len(self.allowed) if name in EVERY_CORE else threads
            lines = [Result.from_json(line) for line in self._process(job, cores)]
            found += lines
            if len(lines) < len(remaining):
                died = remaining[len(lines)]
                found.append(Result(died.key, died.title, failure=self.last_words))
        return found

    def _process(self, job: dict[str, Any], cores: int) -> list[dict[str, Any]]:
        """What a measuring process wrote. Its cores are the last ones allowed: the first serve interrupts."""
        self.last_words = ""
        with tempfile.TemporaryDirectory(prefix="ingot-bench-") as folder:
            job_path, results = Path(folder, "job.json"), Path(folder, "results.jsonl")
            job_path.write_text(json.dumps(job))
            command = [sys.executable, "-m", "benchmarks.worker", str(job_path), str(results)]
            errors = Path(folder, "errors.txt")
            with errors.open("w") as stream:
                try:
                    done = subprocess.run(
                        command,
                        cwd=ROOT,
                        env=environment(cores, job["suite"]),
                        stdout=stream,
                        stderr=stream,
                        timeout=PATIENCE,
                        preexec_fn=lambda: os.sched_setaffinity(0, self.allowed[-cores:]),
                    )
                    self.last_words = f"the process ended with {done.returncode}: {tail(errors)}"
                except subprocess.TimeoutExpired:
                    self.last_words = f"no result within {PATIENCE} s"
            if not results.exists():
                return []
            return [json.loads(line) for line in results.read_text().splitlines()]


def environment(threads: int, suite: str) -> dict[str, str]:
    """Libraries read how many threads they may have before the first line of Python runs.

    Functions of large arrays are measured with an allocator that keeps its memory: some libraries take a new array
    for each result, and the time would go to the system's clearing of pages.
    """
    count = str(threads)
    single = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1" if threads == 1 else ""
    return {
        **os.environ,
        "OMP_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": single,
        "PYTHONWARNINGS": "ignore",
        **(KEEP_MEMORY if suite == "stream" else {}),
    }


def tail(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[:400]


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
