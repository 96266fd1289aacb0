import json
import time
from pathlib import Path

from p2pcache.errors import UsageError
from tests.cli.commands.cluster.answers import ROW
from tests.cli.conftest import Run
from tests.cli.fake_agent import FakeAgent


def test_history_is_a_table(node: FakeAgent, run: Run) -> None:
    lines = run("history", "--agent", node.address).stdout.splitlines()
    assert lines[0].split() == ["WHEN", "ACTION", "REF", "SIZE", "TIME", "RATE", "PEERS", "RESULT"]
    assert lines[1].endswith("exit 7 (4 times): storage?[31m doesn't answer")
    assert lines[2].split()[2:] == [
        "pull", "team/llama:v2", "140", "GB", "50s", "2.80", "GB/s", "75%", "done",
    ]  # fmt: skip
    assert lines[3].split()[2:4] == ["prune", "-"]


def test_a_warm_has_a_rate_as_a_pull_has(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/history", {"history": [ROW | {"action": "warm"}]})
    assert "2.80 GB/s" in run("history", "--agent", agent.address).stdout


def test_history_failed_json_limit(node: FakeAgent, run: Run) -> None:
    done = run("history", "--failed", "--json", "--agent", node.address)
    assert [row["code"] for row in json.loads(done.stdout)["history"]] == [7]
    run("history", "-n", "7", "--agent", node.address)
    assert node.seen[-1][1] == "/v1/history?limit=7"
    assert run("history", "-n", "0", "--agent", node.address).exit_code == 2


def test_history_since(agent: FakeAgent, run: Run) -> None:
    rows = [ROW | {"ended": time.time() - age, "ref": f"a:v{age}"} for age in range(0, 300, 10)]
    agent.document("GET /v1/history", {"history": rows})
    done = run("history", "--since", "4m5s", "--json", "--agent", agent.address)
    assert isinstance(done.exception, UsageError)  # one unit, as everywhere
    done = run("history", "--since", "245s", "--json", "--agent", agent.address)
    found = json.loads(done.stdout)["history"]
    assert [row["ref"] for row in found] == [f"a:v{age}" for age in range(0, 250, 10)]
    assert found[0]["ended_at"].endswith("Z")
    done = run("history", "--since", "245s", "-n", "3", "--json", "--agent", agent.address)
    assert len(json.loads(done.stdout)["history"]) == 3


def test_what_people_ended_is_no_failure(agent: FakeAgent, run: Run) -> None:
    row = ROW | {"code": 130, "message": "a:b was cancelled; pull it again: it resumes"}
    agent.document("GET /v1/history", {"history": [row]})
    lines = run("history", "--agent", agent.address).stdout.splitlines()
    assert lines[1].endswith("cancelled: a:b was cancelled; pull it again: it resumes")
    assert len(run("history", "--failed", "--agent", agent.address).stdout.splitlines()) == 1


def test_history_of_a_cache_without_a_daemon(run: Run, tmp_path: Path) -> None:
    done = run("history", "--json", "--cache-dir", tmp_path / "none")
    assert json.loads(done.stdout) == {"schema": 1, "history": []}
