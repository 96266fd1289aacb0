import json
import time

import pytest

from p2pcache.cli.commands.models import ls as ls_module
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, LLAMA, FakeAgent

MODELS = {
    "models": [
        dict(LLAMA),
        LLAMA | {"ref": "tiny:latest", "namespace": "library", "name": "tiny", "tags": ["latest", "v1"],
                 "bytes": 1000, "bytes_done": 250, "complete": False},
        LLAMA | {"ref": f"@blake3:{HEX}", "namespace": "", "name": "", "tags": []},
    ]
}  # fmt: skip


def test_ls_is_a_table(agent: FakeAgent, run: Run) -> None:
    now = time.time()
    MODELS["models"][0]["last_used"] = now - 7200
    agent.document("GET /v1/models", MODELS)
    lines = run("ls", "--agent", agent.address).stdout.splitlines()
    assert lines[0].split() == ["NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"]
    assert lines[1].split() == [
        "team/llama",
        "v3",
        HEX[:12],
        "140",
        "GB",
        "complete",
        "2h00m",
        "ago",
    ]
    assert lines[2].split() == ["tiny", "latest", HEX[:12], "1.00", "kB", "25%,", "incomplete", "-"]
    assert lines[3].split()[:2] == ["tiny", "v1"]
    assert lines[4].split()[:2] == ["-", "-"]


@pytest.mark.parametrize(
    ("more", "says"),
    [({}, "99%, incomplete"), ({"partly_evicted": True}, "remote, 99.9% left"), ({"kept": "part"}, "part, 99.9%")],
)  # fmt: skip
def test_what_is_not_all_is_never_100_percent(
    agent: FakeAgent, run: Run, more: dict[str, object], says: str
) -> None:
    row = {**LLAMA, "bytes": 100_000, "bytes_done": 99_999, "complete": False, **more}
    agent.document("GET /v1/models", {"models": [row]})
    assert says in run("ls", "--agent", agent.address).stdout


def test_a_model_under_several_names_has_a_line_for_each(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", {"models": [LLAMA | {"refs": ["team/llama:v3", "chat:prod"]}]})
    lines = run("ls", "--agent", agent.address).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["team/llama", "v3"], ["chat", "prod"]]


def test_a_model_without_a_tag_is_found_by_the_name_that_it_was_pulled_as(
    agent: FakeAgent, run: Run
) -> None:
    row = LLAMA | {"ref": f"@blake3:{HEX}", "tags": [], "refs": []}
    agent.document("GET /v1/models", {"models": [row]})
    for pattern in ((), ("team/llama",), ("TEAM/*",)):
        lines = run("ls", *pattern, "--agent", agent.address).stdout.splitlines()
        assert lines[1].split()[:3] == ["team/llama", "-", HEX[:12]]
    assert run("ls", "-q", "--agent", agent.address).stdout == "", "no command takes its ref"
    assert len(run("ls", "other", "--agent", agent.address).stdout.splitlines()) == 1


def test_names_are_shown_as_they_were_pushed(agent: FakeAgent, run: Run) -> None:
    row = LLAMA | {
        "ref": "qwen/qwen3-8b:main", "refs": ["qwen/qwen3-8b:main", "chat:prod"],
        "spellings": {"qwen/qwen3-8b": "Qwen/Qwen3-8B"},
    }  # fmt: skip
    agent.document("GET /v1/models", {"models": [row]})
    for pattern in ((), ("QWEN/*", "chat")):
        lines = run("ls", *pattern, "--agent", agent.address).stdout.splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [
            ["Qwen/Qwen3-8B", "main"],
            ["chat", "prod"],
        ]
    told = run("ls", "-q", "--agent", agent.address).stdout.splitlines()
    assert told == ["Qwen/Qwen3-8B:main", "chat:prod"]


def test_an_old_version_in_the_cluster_has_no_tag(agent: FakeAgent, run: Run) -> None:
    row = {"bytes": 1000, "members": 1, "complete": 1, "wanting": 0, "share": 1.0}
    new, alone = "1" * 64, "2" * 64
    labels = ((HEX, "Team/A:prod"), (new, "team/a:prod"), (alone, "team/b:prod"))
    swarms = [row | {"digest": digest, "label": label} for digest, label in labels]
    agent.document("GET /v1/cluster/models", {"swarms": swarms})
    agent.document("GET /v1/keeps", {"keeps": [], "drains": []})
    agent.document("GET /v1/locate", {"digest": new, "nodes": []})
    told = run("ls", "--cluster", "--agent", agent.address).stdout.splitlines()
    cells = {line.split()[2]: line.split()[:2] for line in told[1:]}
    assert cells == {
        HEX[:12]: ["Team/A", "-"], new[:12]: ["team/a", "prod"], alone[:12]: ["team/b", "prod"],
    }  # fmt: skip
    asked = [path for _, path in [seen[:2] for seen in agent.seen] if "locate" in path]
    assert len(asked) == 1, "only names of several models are looked up"
    agent.document("GET /v1/locate", {"code": 8, "message": "no"}, status=503)
    assert "-" not in [
        line.split()[1]
        for line in run("ls", "--cluster", "--agent", agent.address).stdout.splitlines()
    ]
    told_json = json.loads(run("ls", "--cluster", "--json", "--agent", agent.address).stdout)
    assert {row["old"] for row in told_json["models"]} == {False}


def test_only_shown_names_are_looked_up_and_a_limit_is_told(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"bytes": 1000, "members": 1, "complete": 1, "wanting": 0, "share": 1.0}
    swarms = [
        row | {"digest": f"{number:064d}", "label": f"team/{'abc'[number // 2]}:prod"}
        for number in range(6)
    ]
    agent.document("GET /v1/cluster/models", {"swarms": swarms})
    agent.document("GET /v1/keeps", {"keeps": [], "drains": []})
    agent.document("GET /v1/locate", {"digest": "f" * 64, "nodes": []})
    monkeypatch.setattr(ls_module, "MOST_LOOKED_UP", 1)
    told = run("ls", "--cluster", "team/c", "--agent", agent.address)
    assert [line.split()[:2] for line in told.stdout.splitlines()[1:]] == [["team/c", "-"]] * 2
    assert told.stderr == ""
    told = run("ls", "--cluster", "--json", "--agent", agent.address)
    assert sum(model["old"] for model in json.loads(told.stdout)["models"]) == 2
    assert "2 names of several models weren't looked up" in told.stderr
    asked = [seen[1] for seen in agent.seen if "locate" in seen[1]]
    assert [path.rpartition("%2F")[2][0] for path in asked] == ["c", "a"]


def test_ls_quiet_prints_refs_that_other_commands_take(agent: FakeAgent, run: Run) -> None:
    nameless = LLAMA | {
        "ref": f"@blake3:{HEX}",
        "namespace": "",
        "name": "",
        "tags": [],
        "refs": [],
    }
    agent.document(
        "GET /v1/models",
        {"models": [LLAMA | {"refs": ["team/llama:v3", "chat:prod"]}, nameless]},
    )
    lines = run("ls", "-q", "--agent", agent.address).stdout.splitlines()
    assert lines == ["team/llama:v3", "chat:prod"]


def test_ls_for_machines(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", MODELS)
    told = json.loads(run("ls", "-o", "json", "--agent", agent.address).stdout)
    assert told["schema"] == 1
    assert [model["digest"] for model in told["models"]] == [f"blake3:{HEX}"] * 3
    assert told["models"][1]["last_used_at"] is None
    assert run("ls", "-q", "--agent", agent.address).stdout.splitlines()[:2] == [
        "team/llama:v3",
        "tiny:latest",
    ]


def test_names_from_elsewhere_cannot_drive_the_terminal(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", {"models": [LLAMA | {"name": "x\x1b[2Jy\nz"}]})
    assert "team/x?[2Jy?z" in run("ls", "--agent", agent.address).stdout


@pytest.mark.parametrize(("pattern", "refs"), [
    ("team/*", ["team/llama:v3"]), ("*", ["team/llama:v3", "tiny:latest", "chat:prod"]),
    ("tiny", ["tiny:latest"]), ("library/*", ["tiny:latest", "chat:prod"]), ("*:prod", ["chat:prod"]),
    ("none*", []),
])  # fmt: skip
def test_ls_takes_patterns(agent: FakeAgent, run: Run, pattern: str, refs: list[str]) -> None:
    models = [LLAMA | {"refs": ["team/llama:v3"]}, LLAMA | {"refs": ["tiny:latest", "chat:prod"]}]
    agent.document("GET /v1/models", {"models": models})
    assert run("ls", "-q", pattern, "--agent", agent.address).stdout.splitlines() == refs
    lines = run("ls", pattern, "--agent", agent.address).stdout.splitlines()
    assert len(lines) == 1 + len(refs)
