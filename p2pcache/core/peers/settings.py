"""Thresholds for neighbours that are the same on every node. `SwarmSettings` has those that can be tuned."""

from p2pcache.core.format.chunking import MiB

# -- pauses --

# After a stall of a neighbour, and after a failed read without a tracker; doubled with each one in a row.
PAUSE_S = 1.0
PAUSE_MAX_S = 30.0  # a neighbour, or storage, that recovers is found again within this time

# -- usual times --

BRIDGE_PATIENCE = 4.0  # usual requests: a bridge asks for a run, and then its rack asks it
BRIDGE_PATIENCE_MAX_S = 10.0  # while no request has ended yet, and on the slowest links
# New runs, or gusts of them, of which the pace is taken: the last few seconds of a storm.
STEPS = 15
KNOWN_STEPS = 4  # below this many the pace is unknown: the first one is what was there when we came
# Time in which the first few runs may fail to come. Without a bound, a node that pulls a model of three runs would wait
# for ever to learn a pace.
FIRST_STEPS_S = 6.0

# -- pulses of a node's loop --

# Of a run's time: a request, its answer and the end of a run are each half of it late in the mean, and a neighbour's
# next run is asked for ahead.
PULSE_SHARE = 0.5
PULSE_MAX_S = 0.05  # more is no cheaper, and people wait for some of what comes
PULSE_LEAST_S = 0.004  # shorter ones would wake the loop more often than what comes
LAST_RUNS = 32  # a pull that lacks no more has no pulses, and tells of its last runs at once

# -- what they are told --

# A batch with so many bytes is told at once: at 100 Gbit/s a node has sixty runs by the time for the next one
# (docs/lab/0082).
BATCH_BYTES = 32 * MiB

# Runs' time for which a run that several neighbours have waits to be told: by then most of them have heard of it.
HAVE_WAIT_RUNS = 4
# At most: in a slow swarm each wait would make the pace slower, and so the waits longer.
HAVE_WAIT_S = 0.5
