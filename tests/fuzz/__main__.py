"""Fuzz by hand: `python -m tests.fuzz 0 500` tries these seeds and writes what fails, made small. After a crash, which a
guard page makes of an access outside of memory, the folder's file `seed` says where it was."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.checks import failure_of
from tests.fuzz.makers import MAKERS
from tests.fuzz.shrink import saved, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], help="ops that no graph shall contain")
    arguments = parser.parse_args()
    for name in arguments.without:
        del MAKERS[name]
    failures = 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    current = arguments.folder / "seed"
    started = time.perf_counter()
    for seed in range(arguments.first, arguments.last):
        current.write_text(f"{seed}\n")  # what outlives a crash
        failure = failure_of(seed)
        if failure is None:
            continue
        failures += 1
        small = failure if arguments.no_shrink else shrunk(failure)
        print(f"--- seed {seed}\n{small}", flush=True)
        saved(small, arguments.folder, f"seed{seed}")
    current.unlink(missing_ok=True)
    count = arguments.last - arguments.first
    print(f"{failures} of {count} seeds fail; {time.perf_counter() - started:.1f} s")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
