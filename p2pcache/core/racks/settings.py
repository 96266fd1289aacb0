"""Thresholds of racks and sites that are the same on every node. `SwarmSettings` has those that can be tuned."""

# -- slots --

# Nodes of a rack or site that share the work: no link notices it, and lists stay short.
BRIDGE_SLOTS = 16
# Holders of the same slot elsewhere that a holder dials: half of a node's neighbours, as many as far ones otherwise.
LINKS = 12
# For each slot of a node with several; with those that dial it all are within a few steps.
MIN_LINKS = 4

# -- late bridges --

# A bridge is late if it owes OWED_RATIO times what the median bridge owes and OWED_RUNS more: a bridge that owes one
# or two runs is called late by chance, and more than one copy crosses (docs/lab/0014).
OWED_RATIO = 2
OWED_RUNS = 2
# Reviews without a verdict for which a step of relief lasts: a bridge that is helped doesn't look late.
RELIEF_REVIEWS = 8
