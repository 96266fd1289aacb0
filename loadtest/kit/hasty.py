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
    room.FRESH_S = SECONDS  # a model that was just used may go
    room.LOOK_S = 1.0
    keeps.LONGEST_S = SECONDS  # what couldn't be kept is tried again
    keeper.REFUSED_S = SECONDS
    keeping.READ_S = SECONDS  # a tag that moved is followed
    sys.exit(main())
