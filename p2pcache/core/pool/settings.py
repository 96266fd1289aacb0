"""Thresholds of the pool room that no operator tunes."""

HALF_LIFE_S = (
    7 * 86400.0
)  # new versions come about weekly: the uses of the last one count half then
ONE_USE_S = 60.0  # the containers of a pod pull one after the other: together they are one use
FRESH_S = (
    600.0  # a client that was given a path opens it within this time: an engine first starts Python
)
COST_PEER = 1.0  # of a byte that another node has; the measure of all others
# A model whose only copy in the pool is here, and that was used in this time, goes after all others: storage is read
# again for it. Older ones may go as any, or each node would fill with what nobody asks for.
LAST_COPY_S = 7 * 86400.0
PART_BYTES = 256 << 20  # for less than a stripe that may stay no model is taken apart
COST_STORAGE = 3.0  # of a byte from storage nearby, which all nodes share
HOLD_S = 86400.0  # of a hold that names no time: a pod that restarts at night finds its model in the morning
MAX_HOLD_S = 30 * 86400.0  # a reader that was forgotten can't hold for ever
MAX_CLAIMS = 1000  # pins and holds of one namespace on one node: more than it has models, and little to look through
MAX_QUOTAS = 10_000  # of namespaces: one for each team of a large company
# Of a stripe at most: it is fetched within seconds, and lost with one node.
STRIPE_BYTES = 256 << 20
LEAST_STRIPES = 4096  # of a model that has as many runs: four for each of a thousand nodes
MAX_COPIES = 16  # of a stripe: beyond that `--whole` and `--all` are meant
OVERLOADED = 1.1  # a node's load of a model, beside its share, from which parts of it go to others
HUNGRY = 0.6  # below which it takes parts over: a node that came, not one whose share grew as another went
GIVES = 0.95  # from which others may take them over: just below the share, or a node that came would stay hungry
WEIGHT_STEPS = 4  # of a doubling of room: rounded alike by every tracker
WEIGHT_CHANGE = 1.25  # room changes by this factor before shares change: caches breathe
GRACE_S = 600.0  # a node that was silent for longer doesn't only start again
SETTLE_S = 15.0  # after a takeover: agents have found the new tracker, and told it what they have
MAX_REPAIRS = 20  # of one intent that are remembered: people look at the last ones
LATE_S = 10.0  # after a repair, for nodes to say what they fetched: they do so every few seconds
LACKING_S = 30.0  # the same where no other node can take its part: somebody waits for that
REFUSED_S = 600.0  # until a node that had no room is asked again
MAX_SELECTOR = 1000  # characters of a choice of nodes; people type a few words
