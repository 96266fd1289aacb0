"""A storm on a fleet: hosts of a list pull at once, some by an agent's socket, some through an `ssh`."""

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.kit.results import read
from loadtest.storm.__main__ import main
from loadtest.storm.fleet import Calm, FleetReport, Node, Target, command, read_hosts, run
from loadtest.storm.race import Outcome
from p2pcache.errors import UsageError
from tests.agent.kit import agent, make_model, pull, push
from tests.tracker.kit import tracker

SIZE = 4_000_000
ROOT = Path(__file__).resolve().parents[2]
REMOTE = f"{sys.executable} -m p2pcache.cli.main"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    files = {"weights.bin": random.Random(5).randbytes(SIZE)}
    push(tmp_path / "origin", make_model(tmp_path / "model", files), "team/m:v1")
    return tmp_path / "origin"


def fake_ssh(tmp_path: Path) -> str:
    """What ssh does, without another machine: TARGET is the name of an agent's socket here."""
    script = tmp_path / "ssh"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = gone ] && {{ echo "connect to host gone: no route" >&2; exit 255; }}\n'
        f'export P2PCACHE_AGENT=unix://{tmp_path}/$1.sock\nexec sh -c "$2"\n'
    )
    script.chmod(0o755)
    return str(script)


async def storm(*args: str) -> subprocess.CompletedProcess[str]:
    """The program, as operators run it."""
    words = [sys.executable, "-m", "loadtest.storm", *args]
    return await asyncio.to_thread(
        subprocess.run, words, capture_output=True, text=True, timeout=60, cwd=ROOT
    )


async def test_hosts_pull_at_once(tmp_path: Path, origin: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(f"# three of them\nn-a unix://{tmp_path}/a.sock\nn-b b  # by ssh\n\nn-c c\n")
    args = [
        "--hosts", str(hosts), "--ref", "team/m:v1", "--rate", "200mbit", "--json", str(tmp_path / "r.json"),
        "--ssh", fake_ssh(tmp_path), "--remote", REMOTE,
    ]  # fmt: skip
    async with tracker(origin) as hub:
        url = f"http://{hub.address}"
        async with (
            agent(tmp_path, "a", tracker=url),
            agent(tmp_path, "b", tracker=url),
            agent(tmp_path, "c", tracker=url) as c,
        ):
            assert (await pull(c, "team/m:v1"))["event"] == "done"  # it has the model already
            ended = await storm(*args)
            said = ended.stdout
            assert ended.returncode == 0, ended.stderr + said
            assert "all as it must be" in said
            assert "were there already: not counted" in said
            data = json.loads((tmp_path / "r.json").read_text())
            assert data["counted_nodes"] == [0, 1]
            assert data["alpha"] == 0  # from n-c
            assert [node["code"] for node in data["nodes"]] == [0, 0, 0]
            assert data["t_lb"] == pytest.approx(SIZE / 25e6, rel=0.1)
            assert (
                data["eta"] > 0
            )  # above 1 it may be: --rate is a claim, these links aren't shaped
            assert data["nodes"][1]["report"]["phases"]
            told = read(tmp_path / "r.json")
            assert (told.what, told.curves[1].name) == ("fleet", "n-b")
            again = await storm(*args)
            assert again.returncode == 1
            assert "every node had the model already" in again.stdout


def test_links_that_carry_more_than_was_said_are_no_record() -> None:
    def done_after(seconds: float) -> FleetReport:
        outcome = Outcome(0, ended_s=seconds)
        return FleetReport(
            Calm("m", 1e6, 1e6), [Node(Target("n", "n"), outcome, size_bytes=10_000_000)]
        )

    assert "nothing beats the bound" not in done_after(10.5).as_text()
    quick = done_after(5.0)
    assert quick.as_json()["eta"] > 1
    assert (
        "nothing beats the bound: the links carry more than --rate and --origin-rate"
        in quick.as_text()
    )


async def test_a_host_that_fails_is_told(tmp_path: Path, origin: Path) -> None:
    calm = Calm("team/none:v1", 1e6, 1e6, fake_ssh(tmp_path), REMOTE)
    targets = [
        Target("one", "a"),
        Target("two", "gone"),
        Target("three", f"unix://{tmp_path}/no.sock"),
    ]
    async with agent(tmp_path, "a", origin=origin.as_uri()):
        report = await asyncio.to_thread(run, targets, calm, lambda _: None)
    assert [node.outcome.code for node in report.nodes] == [3, 255, 8]
    assert "no route" in report.nodes[1].outcome.message
    assert len(report.failures()) == 3
    assert report.as_json()["eta"] is None
    assert "WRONG: two ended with 255" in report.as_text()


def test_lists_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "loadtest.storm.__main__.exit_on_signals", lambda: None
    )  # pytest has its own
    hosts = tmp_path / "hosts"
    for text in ("", "one\n", "one a b\n", "one -oProxyCommand=sh\n", "one a\none b\n"):
        hosts.write_text(text)
        with pytest.raises(UsageError):
            read_hosts(hosts)
    hosts.write_text("one a\n")
    assert main(["--hosts", str(hosts)]) == 2
    assert "--ref" in capsys.readouterr().err
    assert main(["--hosts", str(hosts), "--ref", "m", "--fault", "split"]) == 2
    assert main(["--hosts", str(tmp_path / "none"), "--ref", "m"]) == 2
    with pytest.raises(UsageError):
        run(read_hosts(hosts), Calm("; reboot", 1.0, 1.0), print)
    with pytest.raises(UsageError, match="--ssh"):
        run(read_hosts(hosts), Calm("m", 1.0, 1.0, ssh=str(tmp_path / "no-ssh")), print)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--nodes", "0"], "argument --nodes: at least 1"),
        (["--nodes", "2", "--racks", "3"], "--racks: 0 to 2"),
        (["--racks", "-1"], "--racks: 0 to 8"),
        (["--rate", "0"], "argument --rate: more than 0"),
        (["--origin-rate", "0mbit"], "argument --origin-rate: more than 0"),
        (["--racks", "2", "--uplink", "0"], "argument --uplink: more than 0"),
        (["--uplink", "36mbit"], "--uplink is of racks: say --racks K, too"),
        (["--size", "1k"], "argument --size: at least 64KiB"),
        (["--ref", "m"], "--ref is for --hosts"),
        (["--json", "/nope/r.json"], "argument --json: there is no directory /nope"),
        (["--json", "/"], "argument --json: / is a directory"),
        (["--logs", "/dev/null"], "--logs: /dev/null isn't a directory"),
        (["--hosts", "x", "--ref", "m", "--rate", "0"], "argument --rate: more than 0"),
    ],
)
def test_what_makes_no_storm_is_told_before_anything_is_built(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.storm.__main__.exit_on_signals", lambda: None)
    monkeypatch.setattr("loadtest.storm.__main__.run", lambda _: pytest.fail("it was built"))
    with contextlib.suppress(SystemExit):  # argparse's way to end with 2
        assert main(flags) == 2
    assert f": {says}" in capsys.readouterr().err


def test_what_runs_on_a_host() -> None:
    calm = Calm("team/m:v1", 1.0, 1.0)
    far = command(Target("one", "me@one"), calm)
    assert far[:4] == ["ssh", "-o", "BatchMode=yes", "me@one"]
    assert far[4] == "echo ready && read go && exec p2pcache pull team/m:v1 --json"
    assert command(Target("two", "http://two:7402"), calm)[0] == "sh"


def test_a_file_that_other_models_have_too_does_not_disqualify_a_node() -> None:
    node = Node(Target("n", "n"), Outcome(0), size_bytes=10_000_000_000, bytes_local=2_000_000)
    assert node.fetched
    node.bytes_local = 200_000_000
    assert not node.fetched
