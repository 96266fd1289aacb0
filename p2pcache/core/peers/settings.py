"""Thresholds for neighbours that are the same on every node. `SwarmSettings` has those that can be tuned."""

from p2pcache.core.format.chunking import MiB

# -- pauses --

# The pause after a neighbour stalled, its connection ended, or a read failed without a tracker. It doubles with each
# failure in a row, up to the longest one.
PAUSE_S = 1.0
PAUSE_MAX_S = 30.0  # a neighbour, or storage, that recovers is found again within this time

# -- usual times --

# New runs, or gusts of them, below which the pace is unknown: the first ones were there before this node came.
KNOWN_STEPS = 4
# While no pace is known the first few runs are taken to come within this time at most, and a request is taken to need
# this long. Without a bound a node that pulls a model of three runs would wait for ever to learn a pace.
FIRST_STEPS_S = 6.0

# -- pulses of a node's loop --

# A pulse takes this share of the time from one run to the next. A request, its answer and the end of a run are each
# late by half a pulse in the mean; that costs little, since a neighbour's next run is asked for ahead. Shorter pulses
# take more processor time (docs/lab/0132).
PULSE_SHARE = 0.75
PULSE_MAX_S = 0.05  # longer pulses are no cheaper, and people wait for some messages
PULSE_LEAST_S = 0.006  # shorter pulses would wake the loop more often than messages do
LAST_RUNS = 32  # a pull that lacks so many runs or fewer has no pulses, and tells of runs at once

# -- have batches --

# A batch goes at once when its runs have so many bytes: at 100 Gbit/s sixty runs come in the time between two batches
# (docs/lab/0082).
BATCH_BYTES = 32 * MiB

# A run that several neighbours have already waits to be told until so many more runs would have come: by then most
# neighbours have it from others.
HAVE_WAIT_RUNS = 4
# It waits no longer than this: in a slow swarm each wait would make the pace slower, and so the waits longer.
HAVE_WAIT_S = 0.5
