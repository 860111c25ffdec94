"""The official ONNX suite through the backend interface: one case per op always, all of them in the sweep."""

import onnx
import pytest

from tests.frontends.onnx.cases import LIGHT, Case, all_cases, one_per_op, run_case, run_light
from tests.frontends.onnx.exclusions import CASES, EXCLUDED, LEAST_PASSING, PASSING

CHUNKS = 48
QUICK_CHUNKS = 6


@pytest.fixture(scope="session")
def cases(pytestconfig) -> list[Case]:
    return all_cases(pytestconfig.cache.mkdir("onnx"))


def failures(cases: list[Case]) -> list[str]:
    """What went wrong, one line per case; an excluded case that passes is wrong too."""
    found = []
    for case in cases:
        try:
            run_case(case)
        except Exception as error:
            if case.name not in EXCLUDED:
                found.append(f"{case.name}: {type(error).__name__}: {str(error).strip().splitlines()[0]}")
        else:
            if case.name in EXCLUDED:
                found.append(f"{case.name} passes now: take it off the list of exclusions")
    return found


@pytest.mark.parametrize("chunk", range(QUICK_CHUNKS))
def test_every_op_once(cases, chunk):
    wrong = failures(one_per_op(cases)[chunk::QUICK_CHUNKS])
    assert not wrong, "\n".join(wrong)


@pytest.mark.sweep
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_whole_suite(cases, chunk):
    wrong = failures(cases[chunk::CHUNKS])
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not onnx.__version__.startswith("1.23."), reason="the numbers are those of onnx 1.23")
def test_number_of_passing_cases_is_pinned(cases):
    assert len(cases) == CASES
    assert EXCLUDED.keys() <= {case.name for case in cases}
    assert PASSING >= LEAST_PASSING


@pytest.mark.sweep
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_architecture(path):
    run_light(path)
