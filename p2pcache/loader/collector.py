"""Python's garbage collector, which takes as long as all else where a model has many tensors."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Make objects that stay without looking for garbage among them.

    It holds for the whole process, so the block must be short and wait for nothing. Blocks may overlap in
    several threads: the collector is back when the first of them ends.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
