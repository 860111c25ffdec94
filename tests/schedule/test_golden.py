"""One scheduled kernel of each recipe, as text: what a change of the scheduler changes is seen here.

To accept changed text, remove the file in `golden/` and run the test twice: the first run writes it and fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ingot.compiler.ir.symbolic import Symbol
from ingot.compiler.ir.text import parse_function, print_function
from ingot.compiler.schedule import ScheduleOptions, schedule
from tests.schedule import kernels
from tests.schedule.harness import TARGET

FOLDER = Path(__file__).parent / "golden"
n = Symbol("n")

CASES = {
    "elementwise": kernels.add_bias((n, 100)),
    "rows": kernels.softmax((n, 100)),
    "reduction": kernels.reduce_axes((n, 20), (1,)),
    "contraction": kernels.matmul(n, 64, 300),
    "windows": kernels.depthwise(n, 9, 8, 2),
    "blocks": kernels.attention((n,), n, n, 16),
    "fallback": kernels.awkward(n, 5),
}


@pytest.mark.parametrize("recipe", list(CASES))
def test_the_text_of_a_schedule(recipe):
    scheduled = schedule(CASES[recipe], TARGET, ScheduleOptions(recipe="fallback" if recipe == "fallback" else None))
    assert scheduled.recipe == recipe
    text = print_function(scheduled.function)
    assert print_function(parse_function(text)) == text
    path = FOLDER / f"{recipe}.loops"
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path.name} was missing and has been written")
    assert text == path.read_text(encoding="utf-8")
