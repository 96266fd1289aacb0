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

# Runs without a holder that owners read at a time, as many leases are in flight. It is a count of runs: with a
# window from the first of them on, one late run stopped the others and then all began at once (docs/lab/0013).
LOOK_AHEAD = 40
MIN_AHEAD = 24  # runs without a holder, at least, though many may be left to their owners
LEASED = 16  # runs that a lost tracker has granted at that moment, where storage is near
PATIENCE_RATIO = 2.0  # times the time of concurrent reads: the uplink isn't shared evenly
# Share of the usual patience with the other idle owners, once a passed-over owner's runs have come: storage works.
SHORTER_PATIENCE = 0.25
MAX_OWNER_DIALS = 4  # dials in flight: the search for owners must not look like a port scan

# -- without a tracker --

MIN_SHARE = 2  # reads at once of one owner in a large swarm: one always streams while one starts
# Leases go out in file order. A run this far above all runs that we know of when the tracker dies was leased to
# nobody: the usual leases are in flight, and as many more may have been read without our knowledge.
BEYOND_LEASES = 48
KNOWLEDGE_GAP = 32  # runs by which two nodes' knowledge differs at that moment
RETURN_S = 0.5  # the time for a broken connection to be made again before owners begin
REST_S = 1.0  # pause after a failed read without a tracker; doubled with each failure in a row
REST_MAX_S = 30.0  # storage that is back is found again within this time
RECENT_READS = 16  # reads over which the mean goes
# Runs that the tracker had granted are waited for as long as this many times what a batch of reads takes, and no
# longer than `owner_patience_s`, which was measured with slower reads.
GRANTED_RATIO = 12.0
GRANTED_MIN_S = 1.0  # at least: storage whose reads are quick is this late now and then
# Owners read this many times the number of reads that were under way before: as LOOK_AHEAD is to the usual leases.
AHEAD_RATIO = LOOK_AHEAD / LEASED
# Storage is far if this many times the usual leases were under way; less may be chance.
FAR_RATIO = 2
MAX_AHEAD = 160  # runs without a holder that owners read at a time, at most

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
