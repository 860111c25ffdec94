"""Every example runs from a fresh process and ends well.

An example that takes more than a few seconds accepts --quick, which keeps its meaning and shortens its work.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TIME_LIMIT_SECONDS = 300


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    arguments = ["--quick"] if '"--quick"' in path.read_text(encoding="utf-8") else []
    run = subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=tmp_path,  # whatever an example writes by default lands here
        env={**os.environ, "INGOT_THREADS": "1"},  # tests keep all processors busy already
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
    )
    assert run.returncode == 0, f"{path.name} failed\n{run.stdout}\n{run.stderr}"
    assert run.stdout.strip(), f"{path.name} prints nothing that a person could check"
