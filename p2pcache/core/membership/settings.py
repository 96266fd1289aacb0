"""Thresholds of the membership room that no operator tunes; `core.settings.MemberSettings` has the others."""

# Nodes of which something is kept, twice the largest cluster that is supported: gone ones, ones with figures, those
# that a swarm awaits after a restart; and turns to bring models in from other sites.
MOST_NODES = 20_000
# Members that must say the same of a node or of a run: one alone may lie, have bad memory, be cut off or leave. A dial
# that failed counts as a complaint.
WITNESSES = 2

# -- the list of members --
FLUSH_S = 0.25  # between two changes of a swarm's list: at most four a second
FLUSH_S_PER_MEMBER = 0.0005  # in large swarms: a change costs 68 us for each receiver

# -- neighbours --
RACK_SHARE = 2  # half of the neighbours are from the same rack: a link between racks is narrow
COMPLETE_SHARE = 6  # a sixth (4 of 24) have everything: no run is far away, and none is overrun
MOST_HOLDERS = 256  # of parts, beside them: each is one connection more while a pull runs

# -- reachability --
# Dials a second: a sixth of the tracker's core, while ten thousand nodes announce themselves. Some 600 are under way.
RATE = 500.0
BURST_S = 0.125  # of that rate at once, after a pause
DIAL_S = 1.25  # without an answer a dial has failed: a lost SYN is sent again after a second
# Without an answer other nodes get the leases; a node that answers later has lost nothing. A fast reader would
# take dozens of runs in the time of a whole dial.
DOUBT_AFTER_S = 0.05
# Between two dials of one node, whatever it announces. One that failed is tried again, as somebody may have opened the
# port: after twice as long each time, up to eleven minutes.
AGAIN_S = 5.0
LAST_AGAIN_S = 640.0
# A site is believed until fewer than this share of the failed nodes' number are reached: a margin, or one node at the
# balance would turn the site over and over.
DISBELIEVED = 0.8
# How long complaints count: nobody mends a firewall sooner, and a partition may heal.
VERDICT_S = 60.0

REMEMBERED_S = 3600.0  # nodes that are gone: somebody who looks within the hour sees which
MOST_REPLACED = 16  # processes of one id
