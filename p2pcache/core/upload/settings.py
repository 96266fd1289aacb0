"""Thresholds of uploads that are the same on every node. `UploadSettings` has those that can be tuned."""

from p2pcache.core.stats import Straggler

# -- slots --

# Slots of a node that has sent nothing yet: the first run of a storm comes to two neighbours soon, and they pass it on.
# If it were sent to all at once, all would get it late (docs/lab/0073).
FIRST_SLOTS = 2

# -- slow receivers --

# The rates of real connections that share a full link differ by two to three times for a while. So a receiver is slow
# only if it takes longer than that.
SLOW_RECEIVER = Straggler(ratio=3.0, min_samples=8)

# -- places --

# Peers that are called for each free slot: in large swarms three in four of those in line have found a place elsewhere
# meanwhile, and a slot for which such a peer is called stands empty until the next upload ends (docs/lab/0120).
CALLED = 2

# Seconds at least between two times that refused peers hear that others are served: nodes of an older release ask again
# at once when they hear it (docs/lab/0085).
SAY_EVERY_S = 1.0

# -- load --

# A neighbour that says this load or more has no free slot. The number is part of the wire (docs/protocol.md).
# Usually a node has seven slots.
FULL = 7

# -- random loss --

# Segments in one window, after which the line is looked at: enough for one loss in a hundred to show, and they take
# little time even where losses keep a connection slow.
WINDOW_SEGMENTS = 300
# A window is lossy if at least this share of its segments was sent again. With fewer losses cubic fills any line that a
# cluster is likely to have.
LOSSY_SHARE = 1 / 250
# So many lossy windows in a row make a lossy line: the losses of one window may be those of a slow start.
LOSSY_WINDOWS = 2
QUEUE_FREE = 1.25  # a round trip of more times the least one shows a queue, so the line is full
LOST_ROUND_TRIP_S = 0.005  # where a round trip is shorter a lost packet costs next to nothing

# -- the background beside pulls --

# Where the link has no room, one upload of the background follows so many uploads of pulls. A pull loses six percent.
BESIDE = 16
# The link has room while pulls have less than this share of the quickest upload's rate. It is small, since buffers make
# short uploads look quicker than they are.
SPARE_BELOW = 0.25
# An upload of fewer bytes fits into buffers, so its rate says nothing of the link.
LEAST_BYTES = 256 << 10
