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
MAX_URGENT_REPORTED = 64  # runs in one report: a loader waits for a tensor or two at a time

# -- read concurrency --

MIN_READ_S = 1e-6  # clocks have a grain
# Reads of several nodes that fill a link: each node asks its neighbours for runs beside its read.
FILL_A_LINK = SwarmSettings().outstanding + 1
# Reads at once, over those that pay if reads take the shortest time that was seen.
MOST_TIMES = 2

# -- owners --

LEAST_PATIENCE_S = 2.0  # a connection that lost its packets begins again within it (RFC 6298)
PATIENCE_RATIO = 2.0  # times the time of concurrent reads: the uplink isn't shared evenly
# Share of the usual patience with the other idle owners, once a passed-over owner's runs have come: storage works.
SHORTER_PATIENCE = 0.25
MAX_OWNER_DIALS = 4  # dials in flight: the search for owners must not look like a port scan

# -- without a tracker --

MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Of the leases that a lost tracker had in flight so many count at most. Where there are more, reads wait for storage,
# not for one another, and are over in half of the time that they are left (docs/lab/0098).
MOST_UNDER_WAY = 64
# Runs without a holder that owners read at a time, over the reads that were under way: owners share them unevenly. It
# is a count of runs: with a window from the first of them on, one late run stopped the others and then all began at
# once (docs/lab/0013).
AHEAD_RATIO = 2.5
# At most so long what a lost tracker granted is left to its readers: half of the time after which a pull to which
# nothing comes is given up. Only runs that take seconds each need more.
MOST_WAIT_S = 45.0
RETURN_S = 0.5  # the time for a broken connection to be made again before owners begin
HEAR_S = 0.2  # for the others to say what they have of a model that no tracker told of: dials in a site take less
RECENT_READS = 16  # reads over which the mean goes

# -- a node alone --

# Bytes of one request where no other node could read a part of it: a server spends as much on a request for a small
# run as on a large one.
JOIN_BYTES = 32 * MiB
# The missing runs divided by this are the most that the requests hold that may be under way.
JOIN_SHARE = 2
# Seconds for which the bytes of such a request may flow: a run that becomes urgent may lie at the end of one.
JOIN_S = 1.0
# They may flow for this many times as long as it waits for its first byte: on a far way each connection waits for most
# of its time otherwise, and there are only so many.
JOIN_WAITS = 2

# -- isolation --

# Dials that begin together: it must not look like a port scan. Without a tracker all of them do.
DIALS_AT_ONCE = 8
# Members that are dialled to find out: as many as a tracker names as neighbours.
MAX_DIALS = MemberSettings().neighbours
# A dial that hasn't ended by then counts as failed: handshakes have ten seconds.
DIAL_TIMEOUT_S = 15.0
