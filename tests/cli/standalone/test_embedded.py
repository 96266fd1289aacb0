"""The agent that runs inside a command: its settings, and what it leaves behind."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock, patch

import psutil
import pytest

from loadtest.kit.daemons import wait_until
from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.standalone import embedded
from p2pcache.cli.standalone.embedded import agent_alone, agent_settings
from p2pcache.errors import Unreachable, UsageError
from p2pcache.io.host import host_facts
from p2pcache.io.http.client import AgentClient
from p2pcache.io.http.own_addresses import first_address
from tests.agent.kit import agent
from tests.cli.conftest import Run
from tests.cli.loaded_settings import loaded
from tests.cli.standalone.model_kit import make_removable, same
from tests.tracker.kit import tracker


def test_alone_it_listens_on_loopback_only() -> None:
    settings = agent_settings(
        loaded(origin="s3://b", cache_dir="/c"), {"P2PCACHE_LISTEN": "0.0.0.0:7401"}
    )
    assert (settings.listen, settings.cache_dir, settings.origin, settings.tracker) == (
        "127.0.0.1:0",
        "/c",
        "s3://b",
        "",
    )


def test_a_member_needs_the_cluster_key() -> None:
    with pytest.raises(UsageError, match="P2PCACHE_CLUSTER_KEY_FILE"):
        agent_settings(loaded(tracker="http://t:7400"), {})
    member = agent_settings(loaded(tracker="http://t:7400"), {"P2PCACHE_CLUSTER_KEY_FILE": "/key"})
    assert member.tracker == "http://t:7400"
    assert member.role == "client", "nothing is to be kept on a node that leaves soon"


MEMBER = {"P2PCACHE_CLUSTER_KEY_FILE": "/key"}
AWAY = "http://192.0.2.9:7400"


def test_a_member_listens_on_any_port_of_every_address() -> None:
    assert agent_settings(loaded(tracker=AWAY), MEMBER).listen == "0.0.0.0:0"
    given = MEMBER | {"P2PCACHE_LISTEN": "127.0.0.2:7401"}
    member = agent_settings(loaded(tracker=AWAY), given)
    assert member.listen == "0.0.0.0:0", "none that others dial"


def test_a_member_listens_where_the_settings_say_but_on_another_port() -> None:
    """The port is a daemon's, and so is the address that others dial for it."""
    here = first_address() or pytest.skip("this machine has no address but loopback")
    for host in ("0.0.0.0", f"[{here}]" if ":" in here else here):
        given = {"P2PCACHE_LISTEN": f"{host}:7401", "P2PCACHE_ADVERTISE": "node-7.example:7401"}
        member = agent_settings(loaded(tracker=AWAY), MEMBER | given)
        assert (member.listen, member.advertise) == (f"{host}:0", "")


@pytest.mark.parametrize("tracker", ["", "http://127.0.0.1:7400", AWAY])
def test_it_opens_no_door(tracker: str) -> None:
    """A daemon's settings took the daemon's ports, or, with no daemon, opened them for the time of a pull."""
    doors = [name for name in AgentSettings.__struct_fields__ if name.endswith("_listen")]
    assert {"health_listen", "api_listen", "hf_listen", "torrent_listen"} <= set(doors)
    given = {f"P2PCACHE_{name.upper()}": "127.0.0.1:7409" for name in doors}
    settings = agent_settings(loaded(tracker=tracker, origin="s3://b"), MEMBER | given)
    assert not any(getattr(settings, name) for name in doors)


@pytest.mark.parametrize("listen", ["", "0.0.0.0:7401", "192.0.2.200:7401"])
def test_without_a_network_it_works_alone_or_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], listen: str
) -> None:
    """It ended with exit 2, and told to set what a command doesn't take."""
    monkeypatch.setattr(psutil, "net_if_addrs", dict)
    monkeypatch.setattr(host_facts, "source_towards", lambda _host: "")
    given = MEMBER | {"P2PCACHE_LISTEN": listen}
    settings = agent_settings(loaded(tracker=AWAY, origin="file:///o"), given)
    assert (settings.listen, settings.tracker) == ("127.0.0.1:0", "")
    said = capsys.readouterr().err
    assert "network" in said
    assert f"not joining {AWAY}: working alone, from file:///o" in said
    with pytest.raises(Unreachable, match="network"):
        agent_settings(loaded(tracker=AWAY), given)


def test_without_the_key_it_works_alone_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    settings = agent_settings(loaded(tracker="http://t:7400", origin="s3://b"), {})
    assert (settings.listen, settings.tracker) == ("127.0.0.1:0", "")
    assert "working alone" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_on_one_machine_no_key_is_needed(host: str) -> None:
    settings = agent_settings(loaded(tracker=f"http://{host}:7400"), {})
    assert (settings.listen, settings.tracker) == ("127.0.0.1:0", f"http://{host}:7400")


@pytest.mark.parametrize(
    ("met", "peers", "stays"), [(True, 0, True), (False, 1, True), (False, 0, False)]
)
def test_a_node_that_has_met_nobody_hands_nothing_on(
    capsys: pytest.CaptureFixture[str], *, met: bool, peers: int, stays: bool
) -> None:
    """After a pull whose tracker didn't answer it stayed for the whole half minute."""
    client = Mock()
    tracker = {"connected": False, "met": met}  # a loss that passes is no reason to leave
    client.status.return_value = {"tracker": tracker, "peers": peers}
    embedded._hand_on(client, "00", 30.0, quiet=False)
    assert client.linger.called == ("staying for 30s" in capsys.readouterr().err) == stays


async def test_a_node_whose_tracker_went_away_stays(tmp_path: Path) -> None:
    """It left at once where the tracker was just away, and the others read storage again."""
    (tmp_path / "origin").mkdir()
    one = AgentClient(f"unix://{tmp_path / 'n.sock'}")
    settings = {"socket": str(tmp_path / "n.sock")}
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(30):
        away = await stack.enter_async_context(contextlib.AsyncExitStack())
        hub = await away.enter_async_context(tracker(tmp_path / "origin"))
        await stack.enter_async_context(
            agent(tmp_path, tracker=f"http://{hub.address}", **settings)
        )
        while not (await asyncio.to_thread(one.status))["tracker"]["connected"]:
            await asyncio.sleep(0.01)
        await away.aclose()
        while (await asyncio.to_thread(one.status))["tracker"]["connected"]:
            await asyncio.sleep(0.01)
        with patch.object(AgentClient, "linger") as linger:
            await asyncio.to_thread(embedded._hand_on, one, "00", 30.0, quiet=True)
        linger.assert_called_once_with("00", 30.0)


def test_a_node_whose_status_fails_stays() -> None:
    client = Mock()
    client.status.side_effect = Unreachable("it is busy")
    embedded._hand_on(client, "00", 30.0, quiet=True)
    client.linger.assert_called_once_with("00", 30.0)


def test_a_lone_pull_makes_no_folder_for_a_socket(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_private_folder", None)
    assert same(model, Path(run("pull", "team/m:v1").stdout.strip()))


@pytest.mark.parametrize(("line", "says"), [
    ('[agent]\nlabels = "gpu"', "labels"), ('[agent]\nhf_listen = "nowhere"', "hf_listen"),
    ('[agent]\nrack = "a\\tb"', "rack"), ('[tracker]\nkeep_grace_s = "soon"', "keep_grace_s"),
])  # fmt: skip
def test_a_lone_pull_tells_of_a_setting_that_a_daemon_would_refuse(
    run: Run, model: Path, tmp_path: Path, line: str, says: str
) -> None:
    """It used only some of the settings, and said nothing of the others."""
    (tmp_path / "config.toml").write_text(line)
    done = run("pull", "team/m:v1", "--config", str(tmp_path / "config.toml"))
    assert same(model, Path(done.stdout.strip()))
    assert says in done.stderr
    assert "config check" in done.stderr


def test_a_killed_pull_leaves_nothing_outside_its_cache(run: Run, model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="p2pc-") as short:
        folder = Path(short)
        elsewhere, cache = folder / "tmp", folder / "cache"
        elsewhere.mkdir()
        environ = os.environ | {"TMPDIR": str(elsewhere), "P2PCACHE_ORIGIN_BYTES_PER_S": "1MiB"}
        command = [sys.executable, "-m", "p2pcache.cli.main", "pull", "team/m:v1"]
        command += ["--cache-dir", str(cache)]
        with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: any((cache / "partial").glob("*")), 60)
            process.kill()
        assert list(elsewhere.iterdir()) == []
        again = run("pull", "team/m:v1", "--cache-dir", cache)
        assert again.exit_code == 0, again.exception
        assert same(model, Path(again.stdout.strip()))
        assert not (cache / "command").exists()
        make_removable(cache)


def test_a_pull_works_in_a_cache_too_deep_for_a_socket(
    run: Run, model: Path, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    result = run("pull", "team/m:v1", "--cache-dir", deep)
    assert result.exit_code == 0, result.exception
    with agent_alone(loaded(origin=(tmp_path / "o").as_uri(), cache_dir=str(deep))) as own:
        assert own.models()
    assert not (deep / "command").exists()
