"""Thresholds of the membership room that no operator tunes; `core.settings.MemberSettings` has the others."""

# Entries of each list that strangers could fill: nodes that are gone, nodes with figures, nodes that a swarm awaits
# after a restart, turns to bring models in from other sites. Twice the nodes of the largest supported cluster.
MOST_NODES = 20_000
# Members that must say the same of a node or of a run: one alone may lie, have bad memory, be cut off or leave. The
# tracker's failed dial counts as one complaint.
WITNESSES = 2

# -- the list of members --
# Between two changes of a swarm's list, at least: a cluster may have many small swarms.
FLUSH_S = 0.25
FLUSH_S_PER_MEMBER = 0.0005  # in large swarms: a change costs 68 us for each receiver

# -- neighbours --
RACK_SHARE = 2  # half of the neighbours are from the same rack: a link between racks is narrow
COMPLETE_SHARE = 6  # a sixth (4 of 24) have everything: no run is far away, and none is overrun
MOST_HOLDERS = 256  # of parts, beside them: each is one connection more while a pull runs

# -- reachability --
# Dials a second: a sixth of the tracker's core, while ten thousand nodes announce themselves. Some 600 are under way.
RATE = 500.0
# Dials of so many seconds may begin at once after a pause: the loop's timers come late.
BURST_S = 0.125
DIAL_S = 1.25  # without an answer a dial has failed: a lost SYN is sent again after a second
# Between two dials of one node, whatever it announces. After a failed dial the pause doubles each time, up to the time
# for which complaints count.
AGAIN_S = 5.0
# A site is believed until fewer than this share of the failed nodes' number are reached: a margin, or one node at the
# balance would turn the site over and over.
DISBELIEVED = 0.8
# Complaints count for so long: nobody mends a firewall sooner, and a partition may heal.
VERDICT_S = 60.0

REMEMBERED_S = 3600.0  # people see nodes that are gone for an hour
MOST_REPLACED = 16  # processes of one node id that are remembered as replaced
