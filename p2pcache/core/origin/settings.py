"""Thresholds of reads from storage that are the same on every node. `SwarmSettings` has those that can be tuned.

Names that end in `_S` are seconds. Measurements are in the lab records that are named (docs/lab).
"""

from p2pcache.core.format.chunking import MiB

# -- leases of one node --

# Leases of a node that has read nothing. A storm's first agent is alone for an instant: with its full credit it would
# take all leases and then be the only uploader (docs/lab/0040).
FIRST_CREDIT = 1
# More leases for each run that was read, so that a lone node soon has its usual reads.
CREDIT_PER_READ = 2
CORRUPT_AFTER = 2  # mismatches of our own reads after which the origin counts as corrupt
MAX_URGENT_REPORTED = 64  # runs in one report: a loader waits for a tensor or two at a time

# -- read concurrency --

MIN_READ_S = 1e-6  # clocks have a grain
# Reads that wait for their first byte, over those that do on average: they come unevenly.
WAIT_RATIO = 2.0
# Reads whose bytes flow, over those that could flow as quickly as they do alone.
FLOW_RATIO = 1.25
QUICK_S = 0.25  # a read that flows for longer is held up by a link: connections to object storage are quicker
MOST_TIMES = 2  # reads at once, over those that brought as many reads a second
SAME_RATE = 1.1  # a rate is another one from this ratio on

# -- owners --

LEAST_PATIENCE_S = 2.0  # a connection that lost its packets begins again within it (RFC 6298)
PATIENCE_RATIO = 2.0  # times the time of concurrent reads: the uplink isn't shared evenly
# Share of the usual patience with the other idle owners, once a passed-over owner's runs have come: storage works.
SHORTER_PATIENCE = 0.25
MAX_OWNER_DIALS = 4  # dials in flight: the search for owners must not look like a port scan

# -- without a tracker --

MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Reads that were under way in the swarm when its tracker was lost, whatever was measured: a tracker grants as many
# where storage is near, and not many more where it is far.
LEAST_UNDER_WAY = 8
MOST_UNDER_WAY = 64
# Runs without a holder that owners read at a time, over the reads that were under way: owners share them unevenly. It
# is a count of runs: with a window from the first of them on, one late run stopped the others and then all began at
# once (docs/lab/0013).
AHEAD_RATIO = 2.5
# Leases go out in file order. A run this many times the reads that were under way above all runs that we know of was
# leased to nobody: they were in flight, and as many more may have been read without our knowledge.
BEYOND_RATIO = 3
KNOWLEDGE_RATIO = 2  # the same: runs by which two nodes' knowledge differs at that moment
RETURN_S = 0.5  # the time for a broken connection to be made again before owners begin
REST_S = 1.0  # pause after a failed read without a tracker; doubled with each failure in a row
REST_MAX_S = 30.0  # storage that is back is found again within this time
RECENT_READS = 16  # reads over which the mean goes

# -- a node alone --

# Bytes of one request where no other node could read a part of it: a server spends as much on a request for a small
# run as on a large one.
JOIN_BYTES = 32 * MiB
JOIN_SHARE = 8  # the missing runs divided by this are the most that requests under way hold
# Seconds that such a request may take, as reads of late were: a run that becomes urgent may lie at the end of one.
JOIN_S = 0.5

# -- isolation --

# Dials that begin together: it must not look like a port scan. Without a tracker all of them do.
DIALS_AT_ONCE = 8
MAX_DIALS = 24  # members that are dialled to find out: as many as a tracker names as neighbours
# A dial that hasn't ended by then counts as failed: handshakes have ten seconds.
DIAL_TIMEOUT_S = 15.0
