"""Thresholds of reads from storage that are the same on every node. `SwarmSettings` has those that can be tuned.

Names that end in `_S` are seconds. Measurements are in the lab records that are named (docs/lab).
"""

from p2pcache.core.format.chunking import MiB
from p2pcache.core.settings import MemberSettings, SwarmSettings

# -- leases of one node --

# Reads at once, and leases, of a node that has read nothing: with eight at once the first run came when all came, and
# nodes that nobody reaches took all leases of a small model.
FIRST_READS = 1
# More leases for each read that has ended: a slow node is noticed by then. With all of them after one read it took a
# third of a storm's leases (docs/lab/0074).
MORE_PER_READ = 2

# -- read concurrency --

MIN_READ_S = 1e-6  # clocks have a grain
# Reads of several nodes that fill a link: each node has its requests to neighbours beside its read, so as many
# reads and one fill it, and one more does so while nodes pause between two reads (docs/lab/0120).
FILL_A_LINK = SwarmSettings().outstanding + 2
# Reads at once, over those that pay if reads take the shortest time that was seen.
MOST_TIMES = 2

# -- members that are dialled without being named as neighbours --

# Dials to owners that are under way, and members that a lonely node tries: a node that enters dials as many at once.
MAX_DIALS = MemberSettings().neighbours

# -- owners --

LEAST_PATIENCE_S = 2.0  # a connection that lost its packets begins again within it (RFC 6298)
PATIENCE_RATIO = 2.0  # times the time of concurrent reads: the uplink isn't shared evenly
# Share of the usual patience with the other idle owners, once a passed-over owner's runs have come: storage works.
SHORTER_PATIENCE = 0.25
# Share of the patience with an owner after which it is dialled. It must be dialled before it is passed over. Sooner,
# nodes that lack nothing would dial all others (docs/lab/0119).
DIAL_AFTER = 0.5

# -- without a tracker --

MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Most leases of a lost tracker that are waited for. More of them wait for storage, not for one another, and are over
# in half of the time (docs/lab/0098).
MOST_UNDER_WAY = 64
# Runs without a holder that owners look at, over the reads that were under way: owners share them unevenly. They are
# counted, not taken from a window: one late run stopped a window, and then all began at once (docs/lab/0013).
AHEAD_RATIO = 2.5
# The longest time for which the leases of a lost tracker are left to their readers: half of the time after which a
# pull to which nothing comes is given up. Only runs that take seconds each need more.
MOST_WAIT_S = 45.0
RETURN_S = 0.5  # before owners begin: a broken connection may be made again
HEAR_S = 0.2  # the same for a model of which no tracker told: the others' haves come sooner, within a site

# -- a node alone --

# Bytes of one request where no other node could read a part of it: a server spends as much on a request for a small
# run as on a large one.
JOIN_BYTES = 32 * MiB
# All requests under way hold the missing runs divided by this at most: a run may become urgent.
JOIN_SHARE = 2
# Seconds for which the bytes of such a request may flow: a run that becomes urgent may lie at the end of one.
JOIN_S = 1.0
# Or for so many times the wait for its first byte: on a far way connections would wait most of the time otherwise,
# and their number is limited.
JOIN_WAITS = 2
