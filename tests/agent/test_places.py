"""Members by rack and site, as the scheduler is told."""

from p2pcache.agent.neighbours import placed
from p2pcache.core.messages import Member


def listed(*places: tuple[int, str, str]) -> dict[int, Member]:
    return {node: Member(node, "h:1", rack, site) for node, site, rack in places}


def test_racks_of_our_site_and_other_sites() -> None:
    members = listed(
        (7, "x", "a"), (3, "x", "a"), (2, "x", "b"), (5, "y", "a"), (4, "y", "b"), (6, "z", "a"), (8, "x", "c")
    )  # fmt: skip
    said = placed(3, ("x", "a"), members)
    assert said.nodes == (2, 3, 4, 5, 6, 7, 8)
    assert (said.rack, said.site) == ((3, 7), (2, 3, 7, 8))
    assert set(said.racks) == {(2,), (8,)}
    assert set(said.sites) == {(4, 5), (6,)}


def test_what_we_are_is_what_our_settings_say_not_what_the_list_says() -> None:
    said = placed(3, ("x", "b"), listed((3, "y", "old"), (4, "x", "b")))
    assert (said.rack, said.site, said.sites) == ((3, 4), (3, 4), ())
    assert placed(3, ("x", "b"), {}).rack == (3,)


def test_without_labels_all_are_in_one_rack() -> None:
    said = placed(1, ("", ""), listed((1, "", ""), (2, "", "")))
    assert (said.rack, said.site, said.racks, said.sites) == ((1, 2), (1, 2), (), ())
