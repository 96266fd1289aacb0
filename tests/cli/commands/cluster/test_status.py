from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_status_says_why_an_agent_is_not_ready(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/status", {
        "ready": False, "reasons": ["tracker is away"], "version": "0.1.0", "node": "00ab", "address": "h:1",
        "tracker": {"url": "http://t:7400", "connected": False}, "origin": {"url": "s3://b"},
        "cache": {"dir": "/c", "cached_bytes": 1000, "free_bytes": 2000}, "models": 1, "pulls": [],
    })  # fmt: skip
    text = run("status", "--agent", agent.address).stdout
    assert "not ready, version 0.1.0" in text
    assert "tracker is away" in text
    assert "http://t:7400 (not connected)" in text
    assert "/c: 1.00 kB in 1 model, 2.00 kB free" in text


def test_status_says_what_the_governor_holds_back(agent: FakeAgent, run: Run) -> None:
    held = {"share": 0.25, "cause": "engine", "upload_bytes_per_s": 5e6, "disk_bytes_per_s": 6e6,
            "upload_slots": 1, "blind": []}  # fmt: skip
    agent.document("GET /v1/status", {"governor": held})
    text = run("status", "--agent", agent.address).stdout
    assert "25% of full speed is left for us: engine; 5.00 MB/s up, 6.00 MB/s to disk, 1 up" in text
    agent.document("GET /v1/status", {"governor": {"share": 1, "blind": ["no PSI"]}})
    assert "can't see: no PSI" in run("status", "--agent", agent.address).stdout
    agent.document("GET /v1/status", {"governor": {"share": 1, "blind": []}})
    assert "governor" not in run("status", "--agent", agent.address).stdout


def test_status_says_all_that_fits_a_screen(node: FakeAgent, run: Run) -> None:
    lines = run("status", "--agent", node.address).stdout.splitlines()
    text = "\n".join(lines)
    assert lines[0].startswith("agent:    not ready, version 0.1.0, up 2h01m")
    assert lines[1].strip() == "origin: no answer"
    for part in (
        "warning:  the certificate ends in 3 days", "gpu-01 00000000000000aa at 10.0.0.1:7401 (ams / r1?)",
        "http://t:7400 (connected, heartbeat 2", "s3://models", "300 GB in 4 models, 100 GB free",
        "3.00 MB from peers (75%), 1.00 MB from storage, 7.00 MB served", "1 running",
    ):  # fmt: skip
        assert part in text


def test_status_of_the_release_before(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/status", {"ready": True, "version": "0.0.9"})
    done = run("status", "--agent", agent.address)
    assert done.exit_code == 0, done.output
    assert "0.0.9" in done.stdout
