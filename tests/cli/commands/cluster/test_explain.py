"""`explain` from scripted answers; tests/agent/node/test_explain.py has those of a real agent."""

import json
from typing import Any

from p2pcache.cli.support.vocabulary import document
from tests.cli.commands.cluster.answers import ROW
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent

PEER: dict[str, Any] = {
    "node": "00000000000000ab", "address": "10.0.0.2:7401", "rate": 5_000_000, "useful": 3, "asked": 1,
    "load": 2, "rests_s": 0,
}  # fmt: skip
NOW: dict[str, Any] = {
    "bytes_done": 250_000_000, "bytes_total": 1_000_000_000, "rate": 50_000_000, "eta_s": 15.0,
    "waits": "bytes are on their way from peers", "runs": 40, "runs_missing": 30, "runs_near": 20,
    "runs_leased": 2, "tracker": True, "alone": False,
    "peers": [PEER, *[PEER | {"node": f"{n:016x}", "rate": None} for n in range(9)]],
    "requests": [{"run": 7, "node": PEER["node"], "seconds": 1.5}], "reads": [],
    "stuck": [{"run": 9, "story": ["asked of 00ab"]}, {"run": 10, "story": []}],
}  # fmt: skip
REPORT: dict[str, Any] = {
    "seconds": 12.0, "phases": [{"phase": "swarm", "seconds": 10.0}, {"phase": "flush", "seconds": 2.0}],
    "bytes_peers": 600, "bytes_origin": 400, "bytes_local": 0, "peers_count": 1,
    "peers": [{"node": PEER["node"], "bytes": 600}], "rate": 100, "peak_rate": 200, "eta_node": 0.8,
    "waited": {"peers": 4.0},
}  # fmt: skip


def explained(agent: FakeAgent, run: Run, **answer: object) -> list[str]:
    agent.document("GET /v1/explain", {"ref": "m:v1", "digest": HEX, **answer})
    done = run("explain", "m:v1", "--agent", agent.address)
    assert done.exit_code == 0, done.exception
    return done.stdout.splitlines()


def test_a_running_pull(agent: FakeAgent, run: Run) -> None:
    lines = explained(agent, run, now=NOW)
    assert lines[0] == f"m:v1  blake3:{HEX[:16]}"
    assert lines[1] == "running: 250 MB of 1.00 GB, 50.0 MB/s, 15s left"
    assert "waits for: bytes are on their way from peers" in lines
    assert any("30 of 40 missing" in line and "tracker connected" in line for line in lines)
    assert ".. and 2 more" in lines  # of ten peers
    assert "asked of peers: 1 runs; the oldest, run 7 from 00000000000000ab, for 1.5 s" in lines
    assert not any(line.startswith("read from storage") for line in lines)
    assert lines[-1] == "  nothing has happened to it yet"


def test_a_pull_that_ended(agent: FakeAgent, run: Run) -> None:
    lines = explained(agent, run, now=None, last=ROW, report=REPORT)
    assert lines[1] == "the last pull that ended: done"
    assert "time to ready: 12.00 s" in lines
    longest = next(line for line in lines if line.startswith("  swarm"))
    assert "#" * 30 in longest
    assert "bytes: 600 B from 1 peer, 400 B from storage, 0 B were here" in lines
    assert any("200 B/s in its best second" in line and "80% of the time" in line for line in lines)


def test_what_lay_here_before_a_pull_counts_as_here(agent: FakeAgent, run: Run) -> None:
    report = REPORT | {"bytes_had": 2000, "bytes_local": 500, "peers_count": 2}
    lines = explained(agent, run, now=None, last=ROW, report=report)
    assert "bytes: 600 B from 2 peers, 400 B from storage, 2.50 kB were here" in lines


def test_a_pull_whose_storage_fails_says_so(agent: FakeAgent, run: Run) -> None:
    lines = explained(agent, run, now=NOW | {"trouble": "http://s3 answers 503"})
    assert lines[3] == "storage: http://s3 answers 503; it is asked again"


def test_a_pull_that_was_killed_is_partly_here(agent: FakeAgent, run: Run) -> None:
    here = {"complete": False, "bytes_done": 400, "bytes_total": 1000}
    text = "\n".join(explained(agent, run, now=None, last=ROW, here=here))
    assert "now: 400 B of 1.00 kB are here" in text
    assert "run: p2pcache pull m:v1" in text
    gone = "\n".join(explained(agent, run, now=None, last=ROW, here=None))
    assert "none of it is in this cache any more" in gone


def test_explain_for_machines_is_the_answer(agent: FakeAgent, run: Run) -> None:
    answer = {"ref": "m:v1", "digest": HEX, "now": None, "last": ROW, "report": REPORT}
    agent.document("GET /v1/explain", answer)
    told = json.loads(run("explain", "m:v1", "--json", "--agent", agent.address).stdout)
    assert told == json.loads(json.dumps(document(answer)))
    assert told["last"]["digest"] == f"blake3:{HEX}"
    assert "rate" not in told["last"]
