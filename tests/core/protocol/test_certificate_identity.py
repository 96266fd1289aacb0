import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.protocol.certificate_identity import ROLES, Member, is_name, of_uris
from p2pcache.errors import NotAllowed

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", fullmatch=True)
nodes = st.integers(0, 2**63 - 1)


@given(names, nodes)
def test_a_members_node_ids_are_its_own(name: str, own: int) -> None:
    node = Member("agent", name).node(own)
    assert 0 <= node < 2**63
    assert Member("agent", name).owns(node)
    assert not Member("tracker", name).owns(node)


@given(names, names, nodes)
def test_a_members_node_ids_belong_to_no_other_member(name: str, other: str, own: int) -> None:
    if name != other:
        assert not Member("agent", other).owns(Member("agent", name).node(own))


def test_the_binding_is_part_of_the_protocol() -> None:
    assert Member("agent", "node-17").node(5) == 0x2629348A80000005


@given(names)
def test_uris_round_trip(name: str) -> None:
    for role in ROLES:
        member = Member(role, name)
        assert of_uris(["https://x", member.uri]) == member


def test_a_pusher_is_an_agent_that_may_move_tags() -> None:
    pusher, agent, tracker = (Member(role, "n") for role in ("pusher", "agent", "tracker"))
    assert pusher.node(7) == agent.node(7), "a cache keeps its id when its node becomes a pusher"
    assert pusher.owns(agent.node(7))
    assert not tracker.owns(agent.node(7))
    assert pusher.acts_as("agent")
    assert not pusher.acts_as("tracker")
    assert not agent.acts_as("pusher")
    assert not tracker.acts_as("agent")
    pusher.need_pusher()
    for other in (agent, tracker):
        with pytest.raises(NotAllowed, match="--role pusher"):
            other.need_pusher()


@pytest.mark.parametrize("uris", [
    [], ["https://p2pcache"], ["p2pcache://agent/a", "p2pcache://agent/b"], ["p2pcache://admin/a"],
    ["p2pcache://agent/"], ["p2pcache://agent"], ["p2pcache://agent/a/b"], ["p2pcache://agent/a\n"],
    ["p2pcache://agent/\u0430"], ["p2pcache://agent/" + "a" * 81],
])  # fmt: skip
def test_uris_that_name_no_member(uris: list[str]) -> None:
    with pytest.raises(NotAllowed):
        of_uris(uris)


def test_names() -> None:
    assert is_name("node-1.example")
    assert not is_name("a\n")
