"""Thresholds of the pool room that no operator tunes."""

HALF_LIFE_S = (
    7 * 86400.0
)  # new versions come about weekly: the uses of the last one count half then
ONE_USE_S = 60.0  # the containers of a pod pull one after the other: together they are one use
FRESH_S = (
    600.0  # a client that was given a path opens it within this time: an engine first starts Python
)
COST_PEER = 1.0  # of a byte that another node has; the measure of all others
COST_STORAGE = 3.0  # of a byte from storage nearby, which all nodes share
HOLD_S = 86400.0  # of a hold that names no time: a pod that restarts at night finds its model in the morning
MAX_HOLD_S = 30 * 86400.0  # a reader that was forgotten can't hold for ever
MAX_CLAIMS = 1000  # pins and holds of one namespace on one node: more than it has models, and little to look through
MAX_QUOTAS = 10_000  # of namespaces: one for each team of a large company
