"""Thresholds of requests that are the same on every node. `SwarmSettings` has those that can be tuned."""

LEAD = 1.25  # times an answer takes: that long before a run's usual end the next one is asked for
# Between two reviews of paces, links and refusals: they change slowly and cost O(neighbours).
REVIEW_S = 0.25
TIE_LIMIT = 64  # equally rare runs among which dice decide: low ones, which all want first
NEAR_PLACES = 3  # requests within the rack that go out whatever is asked across a boundary
# Times the patience for a second request while free runs are left, and times this for one across a boundary.
VERY_LATE = 2
# Usual request times for which a crowded neighbour may refuse all requests: its slots aren't dealt out evenly.
PATIENT = 8
# Times an owner's patience, while no request has ended: the uploads of a slow neighbour end together, and late.
UNMEASURED = 2
# Refusals of a neighbour that said before each of them that it serves nobody. One may be chance: its slots were
# taken meanwhile.
IDLE_REFUSALS = 2
