"""Thresholds of racks and sites that are the same on every node. `SwarmSettings` has those that can be tuned."""

from p2pcache.core.stats import Straggler

# -- slots --

# So many nodes of a rack or site share what crosses its boundary: no node's link notices it, and lists stay short.
BRIDGE_SLOTS = 16
# Holders of the same slot elsewhere that a holder dials: half of a node's neighbours, as many as far ones otherwise.
LINKS = 12
# For each slot of a node with several; with those that dial it all are within a few steps.
MIN_LINKS = 4

# -- late bridges --

# A late bridge brings little and owes much. If only the first were asked, a bridge that owes one or two runs would be
# called late by chance, and more than one copy would cross (docs/lab/0014).
# A bridge brings little if its part of the runs that waited is below 30 % of the median bridge's part.
LATE_BRIDGE = Straggler(ratio=10 / 3)
# A bridge owes much if it owes so many times what the median bridge owes, and so many runs more.
OWED_RATIO = 2
OWED_RUNS = 2  # chance alone makes a bridge owe as many
PROBATION_REVIEWS = 8  # reviews for which the second in order also does the work of a late bridge
