from p2pcache.errors import IntegrityError
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent


def test_verify_tells_good_from_bad(agent: FakeAgent, run: Run) -> None:
    end = {
        "event": "done",
        "ref": "llama",
        "digest": HEX,
        "bytes": 1000,
        "chunks": 4,
        "chunks_bad": 0,
        "seconds": 1.0,
    }
    agent.stream(
        "POST /v1/verify", [{"event": "progress", "bytes_done": 1, "bytes_total": 1000}, end]
    )
    good = run("verify", "llama", "--agent", agent.address)
    assert (good.exit_code, good.stdout) == (0, "")
    assert "all good" in good.stderr
    agent.stream("POST /v1/verify", [end | {"chunks_bad": 2}])
    bad = run("verify", "llama", "--agent", agent.address)
    assert isinstance(bad.exception, IntegrityError)
    assert "of 4 chunks 2 bad (dropped)" in str(bad.exception)
