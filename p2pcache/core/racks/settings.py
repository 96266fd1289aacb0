"""Thresholds of racks and sites that are the same on every node. `SwarmSettings` has those that can be tuned."""

# -- slots --

# Nodes of a rack or site that share the work: no link notices it, and lists stay short.
BRIDGE_SLOTS = 16
# Holders of the same slot elsewhere that a holder dials: half of a node's neighbours, as many as far ones otherwise.
LINKS = 12
# For each slot of a node with several; with those that dial it all are within a few steps.
MIN_LINKS = 4

# -- late bridges --

# A bridge is late if it brought less than this share of the median bridge's part of the runs that waited,
LATE_RATIO = 0.3
# and if it also owes more than this many times what the others owe (and a few runs), or if one run has waited for
# some reviews. Without the second condition bridges that owe one or two runs are called late by chance, and more
# than one copy crosses (docs/lab/0014).
OWED_RATIO = 2
OWED_RUNS = 2
STUCK_REVIEWS = 2
SILENT_REVIEWS = 6  # if most other bridges bring nothing either: then the uplink is slow
PROBATION_REVIEWS = 8  # reviews for which the second in order also does the work of a late bridge
LONG_REVIEWS = 16  # reviews after which all nodes may fetch a run, whatever else its bridge brings
