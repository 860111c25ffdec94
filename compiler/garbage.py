"""No garbage collection while a program is made.

A compilation makes hundreds of thousands of small objects, and the collector looks at all that are alive again and
again: 10 to 15 % of the time of a large model. Almost all of them are freed by their counts; what is left of cycles
waits for a collection after the compilation, some megabytes.

What a large compilation leaves counts as old: as new objects, all of it would be looked at right afterwards, another
5 to 10 %. Not so when there are many old ones already, so that what nobody needs any more is found in time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY_NEW = 50_000  # objects, 20 ms of the collector
MOST_OLD = 600_000  # objects, 60 MB


@contextmanager
def no_collection() -> Iterator[None]:
    """A context, or a decorator of a function. What was disabled before stays so."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > MANY_NEW and len(gc.get_objects(generation=2)) < MOST_OLD:
                _become_old()
            gc.enable()


def _become_old() -> None:
    """Move all objects to the oldest generation, which costs nothing; unless someone froze objects and wants them to stay so."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()
