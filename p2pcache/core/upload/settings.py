"""Thresholds of uploads that are the same on every node. `UploadSettings` has those that can be tuned."""

from p2pcache.core.stats import Straggler

# -- slots --

# Until uploads have been sent: the first run of a storm comes to two neighbours soon, which pass it on. All at once
# would get it late (docs/lab/0073).
FIRST_SLOTS = 2

# -- slow receivers --

# Real connections that share a full link differ by two to three times for a while, and that says nothing.
SLOW_RECEIVER = Straggler(ratio=3.0, min_samples=8)

# -- places --

# Uploads in a row after which a peer makes room for one that was turned away. Each change costs a call and a new
# question.
QUANTUM = 8
# Seconds at least between two times that peers hear that others are served: older releases ask again at once then.
SAY_EVERY_S = 1.0

# -- load --

# A neighbour that says this load or more has no free slot: on the wire a count of slots, and seven is the usual number
# (docs/protocol.md).
FULL = 7

# -- random loss --

# Segments between two looks at a line: enough for one loss in a hundred to show, and little time even where losses
# keep a connection slow.
WINDOW_SEGMENTS = 300
LOSSY_SHARE = 1 / 250  # sent again; below it, cubic fills any line that a cluster is likely to have
LOSSY_WINDOWS = 2  # in a row; the losses of one may be those of a slow start
QUEUE_FREE = 1.25  # times the least round trip: above it a queue stands, and the line is full
LOST_ROUND_TRIP_S = 0.005  # with a shorter round trip a lost packet costs next to nothing

# -- the background beside pulls --

BESIDE = 16  # uploads of pulls for one of the background, where the link has no room: a pull loses six percent
SPARE_BELOW = 0.25  # of the quickest upload: buffers make short uploads look quicker than they are
LEAST_BYTES = 256 << 10  # less fits into buffers, and says nothing of a link
