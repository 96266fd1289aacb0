"""Thresholds of requests that are the same on every node. `SwarmSettings` has those that can be tuned."""

# -- passes --

LEAD = 1.25  # times an answer takes: that long before a run's usual end the next one is asked for
# Between two reviews of paces, links and refusals: they change slowly and cost O(neighbours).
REVIEW_S = 0.25
TIE_LIMIT = 64  # equally rare runs among which dice decide: bounds the time of a choice
FEW_PEERS = 3  # neighbours; with fewer than this each may owe us several runs
# Requests that flow while neighbours serve nobody: what many narrow links carry together, yet an urgent run waits for
# no more than twice the usual time on a narrow link of our own.
MOST_IDLE = 16
NEAR_PLACES = 3  # requests within the rack that go out whatever is asked across a boundary

# Requests that flow while a full neighbour is asked all the same: a lone one may wait for a slow node.
LONELY = 1

# -- endgame --

NOT_YET = 2  # times the patience while free runs remain: they will come into reach soon
ANYWHERE = 2  # times the limit after which a neighbour beyond a boundary may be asked, too

# -- delivery --

# Usual request times for which a crowded neighbour may refuse all requests: its slots aren't dealt out evenly.
PATIENT = 8
# Times an owner's patience, while no request has ended: the uploads of a slow neighbour end together, and late.
UNMEASURED = 2
LATELY = 2  # rests after a refusal: a neighbour that refused earlier wasn't asked since
# Refusals of a neighbour that said before each of them that it serves nobody. One may be chance: its slots were
# taken meanwhile.
IDLE_REFUSALS = 2
BROKEN = 2  # connections in a row that ended while a request waited: one is a restart
