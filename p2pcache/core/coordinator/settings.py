"""Thresholds of the coordinator that no operator tunes."""

from p2pcache.core.settings import SwarmSettings

# -- what one message may ask for --
# Swarms that are taken in or stepped before other members have their turn: some milliseconds.
SWARMS_AT_ONCE = 16
# Of a tracker's memory for one member, some 5,500 models of 4,096 runs. A member that tells of more is taken out of the
# swarms of which it told the longest ago.
MAX_MEMBER_BYTES = 128 << 20
# Of a tracker's memory for one member of a swarm; one byte more for each run: five sets with a bit for each run.
SWARM_BYTES = 20_000
NAMED_BYTES = 100  # of a tracker's memory for one node that a swarm awaits after a restart

# -- a tracker that stood still --
# Pause before it grants again: agents that went on without it first say what they read.
HOLD_S = 0.5

# -- the list of all nodes --
MOST_LISTED = 100  # nodes of a cluster that gets the list: it costs ten thousand messages when all of them come

# -- complaints and stuck runs --
INTRODUCED = 4  # holders named for each stuck run: enough to find one that serves
SCARCE = 2  # holders at most, for a member that waits in vain to complain of them
IN_VAIN_S = SwarmSettings().stuck_after_s  # after holders were introduced and didn't help
AGAIN_TIMES = 4  # more runs are read again for a member that waits in vain, each time
MOST_AGAIN = 4096  # runs up to which they grow: a tenth of a second of a tracker's time is too long

# -- wrong bytes in storage --
STOP_S = 30.0  # without leases: pods that restart would read the wrong bytes for ever

# -- models from other sites --
CROSSING_S = 45.0  # until a turn ends that isn't renewed: nodes renew it four times as often

# -- which tracker is active --
# A tenure without renewal; no longer than agents need to notice that a tracker is silent.
TENURE_S = 10.0
# Of a tenure: between a standby's reads, and after a call that failed. A holder stops so much early, as the rates of
# clocks may differ by a tenth, and renews after three: with calls of two seconds that fail at 3, 6 and 9 s.
PAUSE = 0.1
