"""What every test shares: a compile cache of its own, reproducible randomness, and the known_bug marker.

Invariant: a test's result depends on the code and its own name only, never on the order of tests, on earlier
runs or on what the developer's home directory holds.
"""

import os
import shutil
import tempfile
import zlib

import hypothesis
import numpy as np
import pytest

from ingot import nn

# Random search belongs to the sweeps: an ordinary run tries the same examples each time, on any machine.
hypothesis.settings.register_profile("reproducible", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("reproducible")

CACHE_VARIABLE = "XDG_CACHE_HOME"


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled objects of tests out of the user's cache; workers inherit the controller's folder."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="ingot-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ[CACHE_VARIABLE] = folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """known_bug("reason") means: fails today, and whoever mends it is told to remove the marker."""
    for item in items:
        for marker in item.iter_markers("known_bug"):
            if len(marker.args) != 1:
                raise pytest.UsageError(f"{item.nodeid}: known_bug takes one argument, the reason")
            item.add_marker(pytest.mark.xfail(reason=marker.args[0], strict=True))


@pytest.fixture(autouse=True)
def _initial_weights() -> None:
    """Layers begin with the same weights, whichever tests came before."""
    nn.seed(0)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded by the test's name: independent of other tests, the same in every run."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
