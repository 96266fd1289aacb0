import json

import pytest

from p2pcache.errors import Conflict, NotFound, UsageError
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent, Handler


def test_rm_takes_several_and_stops_at_a_refusal(agent: FakeAgent, run: Run) -> None:
    agent.document(
        "DELETE /v1/model", {"removed": "a:latest", "digest": HEX, "bytes_freed": 5_000_000}
    )
    assert (
        run("rm", "a", "b", "--agent", agent.address).stdout
        == "removed a:latest (5.00 MB freed)\nremoved b:latest (5.00 MB freed)\n"
    )
    assert run("rm", "Org/A", "--agent", agent.address).stdout.startswith("removed Org/A:latest ")
    agent.document("DELETE /v1/model", {"code": 10, "message": "it is being pulled"}, status=409)
    assert isinstance(run("rm", "a", "--agent", agent.address).exception, Conflict)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_rm_says_what_it_removed_before_a_failure(
    agent: FakeAgent, run: Run, flags: tuple[str, ...]
) -> None:
    def reply(handler: Handler) -> None:
        if "missing" in handler.path:
            handler.answer(404, {"code": 3, "message": "model missing is not in this cache"})
        else:
            handler.answer(200, {"removed": "a:latest", "digest": HEX, "bytes_freed": 0})

    agent.replies["DELETE /v1/model"] = reply
    result = run("rm", "a", "missing", "c", *flags, "--agent", agent.address)
    assert isinstance(result.exception, NotFound)
    if flags:
        assert [each["removed"] for each in json.loads(result.stdout)["removed"]] == ["a:latest"]
    else:
        assert result.stdout == "removed a:latest (0 B freed)\n"


def test_rm_checks_all_refs_first(agent: FakeAgent, run: Run) -> None:
    agent.document("DELETE /v1/model", {"bytes_freed": 0})
    assert isinstance(run("rm", "a", "../b", "--agent", agent.address).exception, UsageError)
    assert agent.seen == []


@pytest.mark.parametrize(("answer", "calls"), [("y\n", 1), ("n\n", 0)])
def test_rm_asks_on_a_terminal(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, calls: int
) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.cache.rm.on_terminal", lambda: True)
    agent.document("DELETE /v1/model", {"bytes_freed": 0, "unsure": "3 are hidden"})
    done = run("rm", "a", "--agent", agent.address, input=answer)
    assert len(agent.seen) == calls
    assert ("3 are hidden" in done.stderr) is bool(calls)
    assert run("rm", "a", "--yes", "--agent", agent.address).exit_code == 0
    assert len(agent.seen) == calls + 1
