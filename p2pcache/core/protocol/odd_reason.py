"""Why one node gets no leases: the values of `messages.Stop.odd`. 0 would be: no node does."""

from enum import IntEnum


class OddReason(IntEnum):
    """What is known of the runs that the node read wrong."""

    OTHERS_READ_IT = 1
    NOBODY_ELSE_READS = 2
