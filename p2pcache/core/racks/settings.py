"""Thresholds of racks and sites that are the same on every node. `SwarmSettings` has those that can be tuned."""

from p2pcache.core.stats import Straggler

# -- slots --

# Nodes of a rack or site that share the work: no link notices it, and lists stay short.
BRIDGE_SLOTS = 16
# Holders of the same slot elsewhere that a holder dials: half of a node's neighbours, as many as far ones otherwise.
LINKS = 12
# For each slot of a node with several; with those that dial it all are within a few steps.
MIN_LINKS = 4

# -- late bridges --

# A bridge is late if it brings little and also owes much. Without the second condition a bridge that owes one or two
# runs is called late by chance, and more than one copy crosses (docs/lab/0014).
# It brings little: its part of the runs that waited is below 30 % of the median bridge's part.
LATE_BRIDGE = Straggler(ratio=10 / 3)
# It owes much: more than OWED_RATIO times what the others owe and OWED_RUNS more.
OWED_RATIO = 2
OWED_RUNS = 2  # chance alone makes a bridge owe as many
PROBATION_REVIEWS = 8  # reviews for which the second in order also does the work of a late bridge
