"""Ctrl-C and SIGTERM: they unwind the command, which says what goes on without it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Interrupted(BaseException):
    """A signal asks the process to end. It is no Exception: no handler on the way takes it for a fault."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.goes_on = ""  # what happens without this command, for people


@contextmanager
def saying_what_goes_on(text: Callable[[], str]) -> Iterator[None]:
    """If a signal ends the block, say what goes on without it, or stays.

    Args:
        text: for people; called at the signal.
    """
    try:
        yield
    except Interrupted as interrupted:
        interrupted.goes_on = interrupted.goes_on or text()
        raise
