import json
import time
from typing import Any

import pytest

from p2pcache.errors import Conflict, NotFound, UsageError
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent, Handler

LLAMA: dict[str, Any] = {
    "ref": "team/llama:v3", "namespace": "team", "name": "llama", "tags": ["v3"], "digest": HEX,
    "bytes": 140_000_000_000, "files": 30, "bytes_done": 140_000_000_000, "complete": True, "last_used": 0,
}  # fmt: skip
MODELS = {
    "models": [
        LLAMA,
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


def test_a_model_under_several_names_has_a_line_for_each(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", {"models": [LLAMA | {"refs": ["team/llama:v3", "chat:prod"]}]})
    lines = run("ls", "--agent", agent.address).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["team/llama", "v3"], ["chat", "prod"]]


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


def test_show_speaks_of_the_name_that_was_asked_for(agent: FakeAgent, run: Run) -> None:
    model = LLAMA | {
        "refs": ["team/llama:v3", "chat:prod"], "tags": ["v3", "prod"], "local": True,
        "manifest": {"files": []},
    }  # fmt: skip
    agent.document("GET /v1/model", model)
    lines = run("show", "chat:prod", "--agent", agent.address).stdout.splitlines()
    assert lines[0] == "ref:        chat:prod"
    assert "tags:       team/llama:v3, chat:prod" in lines
    shown = json.loads(run("show", "chat:prod", "--json", "--agent", agent.address).stdout)
    assert (shown["ref"], shown["namespace"], shown["name"]) == ("chat:prod", "library", "chat")


def test_ls_for_machines(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", MODELS)
    assert json.loads(run("ls", "--json", "--agent", agent.address).stdout) == MODELS
    assert run("ls", "-q", "--agent", agent.address).stdout.splitlines()[:2] == [
        "team/llama:v3",
        "tiny:latest",
    ]


def test_names_from_elsewhere_cannot_drive_the_terminal(agent: FakeAgent, run: Run) -> None:
    agent.document("GET /v1/models", {"models": [LLAMA | {"name": "x\x1b[2Jy\nz"}]})
    assert "team/x?[2Jy?z" in run("ls", "--agent", agent.address).stdout


def test_show(agent: FakeAgent, run: Run) -> None:
    files = {"files": [{"path": "a.safetensors", "size": 5_000_000, "chunks": 20}]}
    agent.document("GET /v1/model", LLAMA | {"generation": 4, "local": False, "manifest": files})
    lines = run("show", "team/llama:v3", "--agent", agent.address).stdout.splitlines()
    assert lines[1] == f"digest:     blake3:{HEX}"
    assert "generation: 4" in lines
    assert "here:       no" in lines
    assert lines[-1].split() == ["a.safetensors", "5.00", "MB", "20"]


def test_rm_takes_several_and_stops_at_a_refusal(agent: FakeAgent, run: Run) -> None:
    agent.document(
        "DELETE /v1/model", {"removed": "a:latest", "digest": HEX, "bytes_freed": 5_000_000}
    )
    assert (
        run("rm", "a", "b", "--agent", agent.address).stdout
        == "removed a:latest (5.00 MB freed)\nremoved b:latest (5.00 MB freed)\n"
    )
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


def test_prune(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    dry = run("prune", "--dry-run", "--agent", agent.address)
    assert dry.stdout == "would remove a:b\n1.00 kB would be freed\n"
    real = run("prune", "--all", "--agent", agent.address)  # no terminal: nothing is asked
    assert real.stdout == "removed a:b\n1.00 kB freed\n"
    assert [json.loads(b) for b in agent.bodies] == [
        {"dry_run": True, "all": False},
        {"dry_run": False, "all": True},
    ]


@pytest.mark.parametrize(("answer", "calls"), [("y\n", 2), ("n\n", 1)])
def test_prune_all_asks_on_a_terminal(
    agent: FakeAgent, run: Run, monkeypatch: pytest.MonkeyPatch, answer: str, calls: int
) -> None:
    monkeypatch.setattr("p2pcache.cli.commands.models.ls._on_terminal", lambda: True)
    agent.document("POST /v1/prune", {"removed": ["a:b"], "bytes_freed": 1000})
    run("prune", "--all", "--agent", agent.address, input=answer)
    assert len(agent.bodies) == calls


def test_ps(agent: FakeAgent, run: Run) -> None:
    pull = {
        "ref": "a:b", "digest": HEX, "bytes_done": 500, "bytes_total": 1000, "rate": 100, "eta_s": 5.0,
        "peers": 3, "bytes_origin": 100, "bytes_peers": 300, "started": 0,
    }  # fmt: skip
    agent.document(
        "GET /v1/pulls",
        {
            "pulls": [
                pull,
                pull | {"eta_s": None, "bytes_origin": 0, "bytes_peers": 0, "kind": "warm"},
            ]
        },
    )
    lines = run("ps", "--agent", agent.address).stdout.splitlines()
    assert lines[1].split() == [
        "a:b",
        "pull",  # an agent of the release before says nothing of kinds
        "50%",
        "1.00",
        "kB",
        "100",
        "B/s",
        "5.0s",
        "3",
        "75%",
        "from",
        "peers",
    ]
    assert lines[2].split()[-3:] == ["-", "3", "-"]
    assert lines[2].split()[1] == "warm"


def test_nodes_and_status(agent: FakeAgent, run: Run) -> None:
    node = {
        "node": "00ab",
        "address": "h:1",
        "rack": "",
        "version": "0.1",
        "models": 2,
        "cached_bytes": 1000,
        "last_seen_s": 1.2,
    }
    agent.document("GET /v1/nodes", {"nodes": [node]})
    assert run("nodes", "--agent", agent.address).stdout.splitlines()[1].split()[:5] == [
        "00ab",
        "-",
        "h:1",
        "-",
        "-",
    ]
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


def test_locate(agent: FakeAgent, run: Run) -> None:
    nodes = [{"node": "00ab", "name": "gpu-7", "address": "h:1", "rack": "r1", "share": 1.0},
             {"node": "00ac", "address": "h:2", "share": 0.5}]  # fmt: skip
    agent.document("GET /v1/locate", {"ref": "m:v1", "digest": "ab" * 32, "nodes": nodes})
    lines = run("locate", "m:v1", "--agent", agent.address).stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["00ab", "gpu-7", "h:1", "r1", "-", "100%"],
        ["00ac", "-", "h:2", "-", "-", "50%"],
    ]
    document = json.loads(run("locate", "m:v1", "--json", "--agent", agent.address).stdout)
    assert document["nodes"] == nodes


def test_a_node_that_has_just_come_tells_no_sizes_yet(agent: FakeAgent, run: Run) -> None:
    node = {"node": "00ab", "cached_bytes": 0, "free_bytes": 0, "models": 2, "load": 0}
    full = node | {"cached_bytes": 1000}
    agent.document("GET /v1/nodes", {"nodes": [node, full]})
    lines = run("nodes", "--agent", agent.address).stdout.splitlines()
    assert lines[1].split()[6:10] == ["2", "-", "-", "0"]
    assert " ".join(lines[2].split()[6:12]) == "2 1.00 kB 0 B 0"
