import json

from p2pcache.errors import NotFound, Unreachable
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent

TOLD = {
    "ref": "team/m:v1", "digest": HEX, "bytes_done": 400, "bytes_total": 1000, "clients": 2,
}  # fmt: skip


def test_cancel_says_what_stays(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/cancel", TOLD)
    done = run("cancel", "team/m:v1", "--agent", agent.address)
    assert (
        done.stdout == "cancelled team/m:v1: 2 clients waited, 400 B of 1.00 kB are here and stay\n"
    )
    assert json.loads(agent.bodies[0]) == {"ref": "team/m:v1"}


def test_cancel_of_a_warm_that_waits(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/cancel", TOLD | {"digest": "", "bytes_total": 0, "bytes_done": 0})
    done = run("cancel", "team/m:v1", "--agent", agent.address)
    assert done.stdout == "cancelled team/m:v1: it won't begin again\n"


def test_cancel_needs_an_agent_and_a_pull(agent: FakeAgent, run: Run) -> None:
    assert isinstance(run("cancel", "m").exception, Unreachable)
    agent.document("POST /v1/cancel", {"code": 3, "message": "no pull of m runs"}, status=404)
    assert isinstance(run("cancel", "m", "--agent", agent.address).exception, NotFound)
