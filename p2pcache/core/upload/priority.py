"""Whose request an upload queue serves first."""

from enum import IntEnum


class Priority(IntEnum):
    """The priority of a request, the first one before all others."""

    URGENT = 1  # it crosses a boundary of racks or sites, or its sender is starved
    USUAL = 2  # somebody waits for the pull
    WARM = 3  # somebody will want the model
    BACKGROUND = 4  # nobody waits for it

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for the bytes now. Such a request may use places that others may not."""
        return self < Priority.WARM
