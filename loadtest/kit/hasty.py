"""Daemons without the patience and the sizes that operators want: what takes minutes and gigabytes by design takes
seconds and megabytes in a soak.

Started like the `p2pcache` command: `python -m loadtest.kit.hasty agent ...`, or `tracker ...`.
"""

import sys

from p2pcache.agent.jobs import room
from p2pcache.agent.keep import keeps
from p2pcache.cli.main import main
from p2pcache.core.pool import eviction, keeper
from p2pcache.tracker.pool import keeping

SECONDS = 3.0
PART_BYTES = 512 << 10  # models of a few MiB are taken apart, too

if __name__ == "__main__":
    for module, name, value in (
        (room, "FRESH_S", SECONDS),  # a model that was just used may go
        (room, "LOOK_S", SECONDS),
        (room, "PART_SLACK_BYTES", 0),
        (eviction, "PART_BYTES", PART_BYTES),
        (keeps, "LONGEST_S", SECONDS),  # what couldn't be kept is tried again
        (keeper, "REFUSED_S", SECONDS),
        (keeping, "READ_S", SECONDS),  # a tag that moved is followed
    ):
        assert hasattr(module, name)
        setattr(module, name, value)
    sys.exit(main())
