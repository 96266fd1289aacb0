"""Daemons without the patience that operators want: what takes minutes by design takes seconds in a soak.

Started like the `p2pcache` command: `python -m loadtest.kit.hasty agent ...`, or `tracker ...`.
"""

import sys

from p2pcache.agent.jobs import room
from p2pcache.agent.keep import keeps
from p2pcache.cli.main import main
from p2pcache.core.pool import keeper
from p2pcache.tracker.pool import keeping

SECONDS = 3.0

if __name__ == "__main__":
    for module, name in (
        (room, "FRESH_S"),  # a model that was just used may go
        (room, "LOOK_S"),
        (keeps, "LONGEST_S"),  # what couldn't be kept is tried again
        (keeper, "REFUSED_S"),
        (keeping, "READ_S"),  # a tag that moved is followed
    ):
        assert hasattr(module, name)
        setattr(module, name, SECONDS)
    sys.exit(main())
