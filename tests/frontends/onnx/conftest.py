"""What the tests of broken and hostile models share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.onnx_worker import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as made:
        yield made
