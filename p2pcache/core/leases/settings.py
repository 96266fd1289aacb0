"""Thresholds of the lease room that no operator tunes; `core.settings.LeaseSettings` has the others."""

from p2pcache.core.settings import LeaseSettings
from p2pcache.core.stats import Straggler

# -- slow readers --
# Mean seconds a read, beside the mean of all. At most a quarter of the readers are slow at once: without a limit chance
# made most of eight equal nodes slow (docs/lab/0013).
SLOW_READER = Straggler(
    ratio=LeaseSettings().slow_node_ratio,  # another setting replaces it
    min_samples=8,  # recent reads of the swarm
    max_share=0.25,
    rest=8.0,  # of its own read times: the next run that it gets is late by one of them
)
FADE = 0.8  # of a reader's earlier reads with each new one: about the last five count
PRIOR_READS = 2.0  # at the mean pace, for every reader: one unlucky read isn't slowness

# -- read concurrency --

WAIT_RATIO = 2.0  # reads beyond the least, over those that the link brings while one waits: they come unevenly
EVEN_PACE = 1.1  # reads begun a second, over those that the link brings: other links slow some down
UNEVEN_PACE = 4.0  # more of them, for each time that the mean wait lies between a wait and the mean
RATE_FADE = 0.9  # of the link's rate with each lower sample: one that ends between two gusts says too little

# -- choice --
# Leases at once beyond the least, those for the shortest waits counted twice, over readers, from which on readers have
# more than one.
WORTH_TWO = 0.75
# Readers, racks and runs that are looked at for one lease: enough to find fit ones, few enough for 10,000 nodes.
SAMPLE = 16
FIRST_REST_S = 0.5  # after a failed read; doubled with each failure in a row
LAST_REST_S = 8.0  # up to this, or an origin's outage would be a hail of attempts

# -- lost runs --
# Until a search begins: a node that lets go of runs says so in several messages, and nobody is to read them meanwhile.
BATCH_S = 0.05
# Between two searches: each looks at all members, and may cost an answer of each, a thousand a second at most.
SEARCH_S_PER_MEMBER = 0.001
# Of a tracker's memory for members of a swarm that may come back, some 5,800 of 4,096 runs: no more are awaited.
AWAITED_BYTES = 4 << 20
LEFT_BYTES = 200  # of it for each of them, beside a bit for each run
