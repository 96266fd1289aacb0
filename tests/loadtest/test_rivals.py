"""The rivals' plan, scores and processes, without namespaces."""

import shlex
import subprocess
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from loadtest.kit.models import files_of, make_model, total_bytes
from loadtest.kit.netns import Host
from loadtest.storm.contest import Racer, RivalError, Score
from loadtest.storm.faults import Trouble
from loadtest.storm.plan import Links, Plan
from loadtest.storm.race import Outcome, Race
from loadtest.storm.report import OriginBytes, Report
from loadtest.storm.rivals import PIECE_BYTES, RIVALS, aria2_command, curl_command, make_torrent
from loadtest.storm.webserver import make_app

MIB = 1 << 20


class Here(Host):
    """This machine, without a namespace."""

    def __init__(self) -> None:
        super().__init__("", "here", "127.0.0.1", 0)

    @property
    def prefix(self) -> list[str]:
        return []


def racer(folder: Path, script: str) -> Racer:
    return Racer(Here(), ["sh", "-c", script], folder / "racer")


def report(rivals: dict[str, Score]) -> Report:
    plan = Plan(nodes=2, rate=1e6, origin_rate=1e6, size_bytes=MIB)
    race = Race([Outcome(n, ended_s=2.0, equal=True) for n in range(2)], 0.1, {}, 0)
    links = Links(1e6, 1e6)
    return Report(plan, Trouble.of(plan), links, race, OriginBytes(MIB, MIB + 9), MIB, rivals)


def test_a_score_is_judged_by_the_bound() -> None:
    score = Score(MIB, t_lb=10.0, t_last=12.5, t_median=12.0, alpha_interface=1.0481234)
    data = score.as_json()
    assert data["eta"] == 0.8
    assert data["alpha_interface"] == 1.0481
    assert not data["void"]


def test_a_rival_that_failed_has_no_eta() -> None:
    score = Score(MIB, t_lb=10.0, t_last=12.5, failure="n3 has other bytes")
    assert score.as_json()["eta"] is None


def test_the_report_shows_ours_and_theirs_and_marks_what_is_void() -> None:
    scores = {
        "aria2": Score(MIB, 1.0, 1.6, 1.5, 1.71, cpu_busy=0.2),
        "libtorrent": Score(MIB, 1.0, 1.6, 1.5, 1.51, cpu_busy=0.9),
    }
    result = report(scores)
    rows = {line.split()[0]: line for line in result.as_text().splitlines() if line}
    assert {"p2pcache", "aria2", "libtorrent"} <= rows.keys()
    assert "1.710" in rows["aria2"]
    assert "void" not in rows["aria2"]
    assert rows["libtorrent"].endswith("void")
    assert result.as_json()["rivals"]["libtorrent"]["void"]
    assert "all as it must be" in result.as_text()


def test_a_rival_that_did_not_run_is_not_kept_quiet() -> None:
    result = report({"aria2": Score(MIB, 1.0, failure="n0 ended before it was done")})
    assert any("n0 ended" in line for line in result.failures())


def test_agents_with_another_code_are_counted_apart() -> None:
    plan = Plan(nodes=4, rate=1e6, origin_rate=1e6, size_bytes=MIB, other_code="/elsewhere")
    outcomes = [Outcome(n, ended_s=2.0, equal=True, bytes_peers=500_000_000) for n in range(4)]
    spent = {"n0": 6.0, "n1": 4.5, "n2": 4.0, "n3": 4.5, "tracker": 99.0}
    race, links = Race(outcomes, 0.1, spent, 0), Links(1e6, 1e6)
    result = Report(plan, Trouble.of(plan), links, race, OriginBytes(MIB, MIB), MIB)
    assert result.as_json()["cpu_s_per_gb_other"] == (10.0, 9.0)
    assert "0.900     as much" in result.as_text()
    assert report({}).as_json()["cpu_s_per_gb_other"] is None
    for outcome in outcomes[1::2]:
        outcome.bytes_peers = 0
    assert result.as_json()["cpu_s_per_gb_other"] is None
    assert "other code" not in result.as_text()


def test_no_rival_no_table() -> None:
    assert "on the wire" not in report({}).as_text()


@pytest.mark.parametrize("name", sorted(RIVALS))
def test_every_rival_says_what_it_is(name: str) -> None:
    assert RIVALS[name].help


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "aria2c" in RIVALS["aria2"].missing()
    assert RIVALS["naive"].missing() == ""


def test_a_racer_waits_for_go(tmp_path: Path) -> None:
    with racer(tmp_path, "echo ready; read go; echo done; sleep 60") as one:
        one.hear("ready", 30)
        with pytest.raises(RivalError, match="took too long"):
            one.hear("done", 0.1)
        before = time.monotonic()
        one.go()
        assert one.hear("done", 30) >= before


def test_a_racer_that_dies_says_why(tmp_path: Path) -> None:
    with racer(tmp_path, "echo ready; read go; echo no disk >&2; exit 3") as one:
        one.hear("ready", 30)
        one.go()
        with pytest.raises(RivalError, match=r"ended before it was done \| no disk"):
            one.hear("done", 30)


def test_a_racer_leaves_no_children(tmp_path: Path) -> None:
    with racer(tmp_path, "sleep 61.25 & echo $!; echo ready; wait") as one:
        one.hear("ready", 30)
        child = next(int(word) for word in one.heard if word.isdigit())
        assert Path(f"/proc/{child}").exists()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{child}/exe").exists()


def test_a_torrent_of_a_model(tmp_path: Path) -> None:
    lt = pytest.importorskip("libtorrent")
    source = make_model(tmp_path / "model", 3 * MIB, shards=1)
    target = tmp_path / "t"
    pieces = make_torrent(source, target, tracker="http://o:1/announce")
    torrent = lt.torrent_info(str(target))
    assert torrent.total_size() == total_bytes(source)
    assert torrent.num_pieces() == pieces == -(-total_bytes(source) // PIECE_BYTES)
    assert torrent.name() == "model"
    params = lt.load_torrent_file(str(target))
    assert params.trackers == ["http://o:1/announce"]


def test_curl_fetches_every_file(tmp_path: Path) -> None:
    source = make_model(tmp_path / "a model", MIB, shards=2)
    words = shlex.split(curl_command("http://o:1", source, tmp_path / "to")[2])
    for name in files_of(source):
        assert str(tmp_path / "to" / "a model" / name) in words
        assert f"http://o:1/a%20model/{name}" in words


def test_aria2_has_a_hook_that_says_the_word(tmp_path: Path) -> None:
    command = aria2_command(tmp_path / "t", tmp_path, tmp_path, start="exit 0", word="done")
    subprocess.run(command, check=True)
    assert subprocess.check_output([tmp_path / "hook"], text=True) == "done\n"


async def test_the_web_server_leases_each_piece_once_and_serves_ranges(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "w").write_bytes(bytes(range(100)))
    (tmp_path / "secret").write_text("no")
    runner = web.AppRunner(make_app(tmp_path / "model", 3))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with aiohttp.ClientSession(base) as client:
            answers = [await client.get("/lease") for _ in range(4)]
            assert [await a.text() for a in answers] == ["0", "1", "2", ""]
            assert answers[3].status == 204
            async with client.get("/model/w", headers={"Range": "bytes=10-19"}) as part:
                assert await part.read() == bytes(range(10, 20))
            async with client.get("/model/%2e%2e/secret") as outside:
                assert outside.status in {403, 404}
    finally:
        await runner.cleanup()


async def test_who_announces_hears_of_those_before(tmp_path: Path) -> None:
    lt = pytest.importorskip("libtorrent")
    runner = web.AppRunner(make_app(tmp_path, 0))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            peers = []
            for port in (6881, 6882, 6881):
                async with client.get("/announce", params={"port": str(port)}) as answer:
                    peers.append(lt.bdecode(await answer.read())[b"peers"])
        first, second = (b"\x7f\0\0\1" + port.to_bytes(2, "big") for port in (6881, 6882))
        assert peers == [b"", first, second]
    finally:
        await runner.cleanup()
