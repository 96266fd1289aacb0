"""The threads of a daemon by purpose, so that work of one kind waits for no other kind.

One client can't hold all threads: where jobs are long, each client has a part of them. Threads of
reads of storage, of the data plane and of questions to storage are elsewhere (`io.tasks.Threads`).
"""

from p2pcache.io.tasks import Threads

STEPS = Threads(8, name="step", each=6)
"""Short work, such as a look into the cache's records or a write of one piece."""

PULLS = Threads(8, name="pull", each=6)
"""Longer parts of pulls: local copies, flushes, publishing."""

WORK = Threads(8, name="work", each=2)
"""Work that takes seconds or minutes: proving, removing, pushing, checks of manifests and patterns."""

NAMES = Threads(4, name="name")
"""Look-ups of host names: while a resolver is silent each takes half a minute."""
