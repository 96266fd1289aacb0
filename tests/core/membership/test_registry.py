"""What nodes say of themselves; and two live agents with one node id, told from one that was restarted."""

from p2pcache.core.membership.registry import ClonedIds, Registry
from p2pcache.core.membership.settings import MOST_REPLACED
from p2pcache.core.protocol.messages import Announce, Heartbeat
from p2pcache.core.settings import MemberSettings


def test_a_heartbeat_that_does_not_say_a_nodes_room_changes_nothing_about_it() -> None:
    """One for a single swarm says none. If the room changed with it, parts would be ordered to move."""
    registry = Registry(MemberSettings())
    node = registry.on_announced(1, Announce("h:1", "1", room_bytes=100), 0.0)
    assert node.room_bytes == 100
    rooms = []
    for beat in (Heartbeat(room_bytes=40), Heartbeat(free_bytes=5)):
        registry.on_heartbeat(1, beat)
        rooms.append(node.room_bytes)
    registry.on_announced(1, Announce("h:1", "1", room_bytes=10), 1.0)
    assert [*rooms, node.room_bytes] == [40, 40, 10], "an agent that starts anew may have less"


def test_a_heartbeat_without_sizes_says_nothing_of_the_disk() -> None:
    """Releases before send such ones for a single swarm."""
    registry = Registry(MemberSettings())
    node = registry.on_announced(1, Announce("h:1", "1"), 0.0)
    registry.on_heartbeat(1, Heartbeat(load=1, free_bytes=5, cached_bytes=6, quota_bytes=7))
    registry.on_heartbeat(1, Heartbeat(load=2))
    assert node.beat == Heartbeat(load=2, free_bytes=5, cached_bytes=6, quota_bytes=7)
    registry.on_heartbeat(1, Heartbeat(free_bytes=0, cached_bytes=11))
    assert node.beat == Heartbeat(free_bytes=0, cached_bytes=11), "a full disk without a quota"


def test_members_expire_in_the_order_of_their_ends() -> None:
    settings = MemberSettings()
    registry = Registry(settings)
    for node in range(1, 6):
        registry.on_announced(node, Announce("h:1", "1"), float(node))
    registry.on_disconnected(5, 5.0)
    ends = {node: registry.nodes[node].expires for node in registry.nodes}
    now = ends[2]
    assert registry.expired(now - 2.0) == sorted(
        (n for n in ends if ends[n] <= now - 2.0), key=ends.__getitem__
    )
    gone = registry.expired(now)
    assert gone == sorted((n for n in ends if ends[n] <= now), key=ends.__getitem__)
    assert registry.look_at == min(ends[n] for n in ends if n not in gone)


def test_a_restarted_or_reconnecting_agent_takes_over_at_once() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in (7, 7, 8, 8, 9))


def test_a_replaced_process_that_comes_back_is_refused_while_the_other_is_there() -> None:
    clones = ClonedIds()
    assert clones.admit(1, 7)
    assert clones.admit(1, 8)
    assert not clones.admit(1, 7)
    assert not clones.admit(1, 7)
    assert clones.admit(1, 8)
    assert clones.admit(2, 7)  # another id is another matter
    clones.on_left(1)
    assert clones.admit(1, 7)


def test_releases_that_say_nothing_are_let_in() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in (0, 7, 0, 7, 8, 0))


def test_the_memory_of_replaced_processes_is_bounded() -> None:
    clones = ClonedIds()
    assert all(clones.admit(1, instance) for instance in range(1, 100))
    assert not clones.admit(1, 98)
    assert clones.admit(1, 99 - MOST_REPLACED - 1)  # forgotten
