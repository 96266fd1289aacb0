"""Thresholds of requests that are the same on every node. `SwarmSettings` has those that can be tuned."""

# The next run is asked for this many answer times before the last one usually ends, or its sender's slot stands empty.
LEAD = 1.25
# Seconds between two reviews of paces, links and refusals: they change slowly, and a review costs O(neighbours).
REVIEW_S = 0.25
# Dice choose among so many of the lowest of equally rare runs: all nodes want the lowest ones first.
TIE_LIMIT = 64
# So many requests within the rack go out, whatever is asked across a boundary (docs/lab/0034).
NEAR_PLACES = 3
# A request is very late after this many times the time after which it is late. Very late runs are asked for again
# though free ones are left, or across a boundary.
VERY_LATE = 2
# A crowded neighbour may refuse all requests for this many times what a request takes: its slots aren't dealt out
# evenly.
PATIENT = 8
# The same while no request has ended, in times an owner's patience: the uploads of a slow neighbour end together, and
# late.
UNMEASURED = 2
# A neighbour is doubted after so many refusals if it said before each of them that it serves nobody. One may be
# chance: its slots were taken meanwhile.
IDLE_REFUSALS = 2
