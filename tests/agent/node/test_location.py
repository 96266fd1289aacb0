"""The node's location: members by rack and site for the scheduler, and the names that an agent may announce."""

import re
from pathlib import Path
from typing import Any, cast

import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.agent.downloads.neighbours import placed
from p2pcache.agent.node.location import located, own_name
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.protocol.messages import Member, unfit_text
from p2pcache.errors import UsageError
from p2pcache.io.host.kube import NodeLabels


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


def test_our_own_place_comes_from_our_settings() -> None:
    said = placed(3, ("x", "b"), listed((3, "y", "old"), (4, "x", "b")))
    assert (said.rack, said.site, said.sites) == ((3, 4), (3, 4), ())
    assert placed(3, ("x", "b"), {}).rack == (3,)


def test_without_labels_all_are_in_one_rack() -> None:
    said = placed(1, ("", ""), listed((1, "", ""), (2, "", "")))
    assert (said.rack, said.site, said.racks, said.sites) == ((1, 2), (1, 2), (), ())


def at(where: Path) -> dict[str, Any]:
    return {"listen": "127.0.0.1:0", "cache_dir": str(where / "c"), "socket": str(where / "s")}


NOBODYS = ": {!r}; expected HOST:PORT, for example 10.0.0.7:7401 or [fd00::7]:7401"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"advertise": "node-7"}, NOBODYS.format("node-7")),
        ({"advertise": "node-7:0"}, NOBODYS.format("node-7:0")),
        ({"advertise": "node-7:" + 5000 * "7"}, NOBODYS.format("node-7:" + 73 * "7")),
        ({"advertise": "[::]:7401"}, NOBODYS.format("[::]:7401")),
        ({"advertise": f"{300 * 'n'}:7401"}, NOBODYS.format(80 * "n")),
        ({"rack": "r1\r"}, "rack has characters that can't be printed: 'r1\\r'"),
        ({"site": 257 * "s"}, "site has 257 characters; 256 are allowed"),
        ({"node_name": "\x1b[2J"}, "node_name has characters that can't be printed"),
    ],
)
def test_an_agent_with_a_refused_place_does_not_start(
    tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    given = {**at(tmp_path), "tracker": "http://127.0.0.1:1", **wrong}
    with pytest.raises(UsageError, match=re.escape(says)):
        AgentApp(AgentSettings(**given))
    assert not (tmp_path / "c").exists()


def test_the_announced_address_is_canonical(tmp_path: Path) -> None:
    app = AgentApp(AgentSettings(**at(tmp_path), advertise="fd00::7:7401"))
    assert app.advertise == "[fd00::7]:7401"
    app.store.close()


def test_without_a_tracker_labels_are_not_checked(tmp_path: Path) -> None:
    AgentApp(AgentSettings(**at(tmp_path), rack="r1\n")).store.close()


async def test_bad_labels_are_refused_before_kubernetes_is_asked() -> None:
    class Silent:
        async def fetch_labels(self) -> dict[str, str]:
            raise AssertionError

    wrong = AgentSettings(advertise=":7401", kubernetes_rack_label="rack")
    with pytest.raises(UsageError, match="advertise"):
        await located(wrong, cast("NodeLabels", Silent()))


@pytest.mark.parametrize("host", ["n\x1b[2J", "n\udcff"])
def test_a_host_s_name_is_made_printable(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert unfit_text(own_name(AgentSettings())) == ""
    assert own_name(AgentSettings()).startswith("n?")


@pytest.mark.parametrize("name", ["", " "])
def test_a_cache_dir_without_a_name_is_refused(name: str) -> None:
    """It was the directory in which the agent was started."""
    with pytest.raises(ValueError, match="cache_dir is blank"):
        AgentSettings(cache_dir=name)
