"""Thresholds of judgements about one machine that no operator tunes."""

# -- governor --
CALM = 0.7  # strain below which the share grows: the gap to 1 keeps it from swinging
STEP = 0.05  # growth in a second, as a part of the whole: full speed again in some 20 s
GROWTH = 0.1  # growth in a second, as a part of the share: strain shows late, and a small share must not overshoot
HARDEST = 0.5  # a sample takes at most this part of the share: one bad second doesn't end a storm
AIM = 0.9  # strain that a smaller share aims at: just below the limit
FLOOR_BYTES_PER_S = 1 << 20  # a large run arrives before its requester gives up
FORGET_PER_S = 0.999  # decay of the highest rate that was seen: a link may have become slower
# The values that mean a strain of 1: shares of the time in which some task stalled (PSI `some`), or of the link's rate.
CPU_STALL = 0.40  # more than a host shows that uses most of its cores
IO_STALL = 0.20  # an engine reads little, so longer stalls come from the agent
MEMORY_STALL = 0.05  # memory reclaim slows all processes at once
LINK_USE = 0.85  # above it queues grow, and all answers take longer

# -- doctor --
SKEW_WARN_S = 5.0  # a Date header counts whole seconds; NTP keeps milliseconds
SKEW_FAIL_S = 300.0  # S3 refuses signatures 15 min off; tokens and certificates live by the clock
FILES_WARN, FILES_FAIL = 4096, 1024  # clients, peers, origin streams and open blobs of a busy agent
SPACE_WARN_BYTES = 20 * 10**9  # the smallest model for which a cache pays
DISK_WARN_BYTES_PER_S = 100 * 10**6  # slower than a 1 GbE link: the disk sets the pace of a pull
# A fast link times a millisecond; the kernel's own defaults are 6 and 4 MiB.
TCP_WARN_BYTES = 4 << 20
SLOW_LINK_MBIT = 1000  # below it a cable or a switch port has fallen back
MODEL_BYTES = 100 * 10**9  # the example of how long a link takes
WARNINGS_TOLD = 3  # of an agent's own in one finding: status has them all

# -- the timeline of a pull --
TAIL_SHARE = 0.95  # of the bytes; behind it few runs are left to choose from, so stragglers show
# The peak rate is a mean over this time: a shorter one would count bursts out of buffers.
PEAK_S = 1.0
LEAST_S = 2 * PEAK_S  # fetching of less time has no `eta_node`
SHORTEST_S = 0.001  # fetching of less time has no rate
TOP_PEERS = 8  # peers in the report

# -- labels of a Node --
MAX_LABELS = 100  # everything in a cluster reads Nodes, so they must stay small
