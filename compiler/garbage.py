"""No garbage collection while a program is made.

A compilation makes hundreds of thousands of small objects, and the collector looks at all that are alive again and
again: 10 to 15 % of the time of a large model. Almost all of them are freed by their counts; what is left of cycles
waits for the next collection after the compilation, some tens of megabytes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """A context, or a decorator of a function. What was disabled before stays so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
