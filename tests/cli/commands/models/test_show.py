import json

from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, LLAMA, FakeAgent


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


def test_show(agent: FakeAgent, run: Run) -> None:
    files = {"files": [{"path": "a.safetensors", "size": 5_000_000, "chunks": 20}]}
    agent.document("GET /v1/model", LLAMA | {"generation": 4, "local": False, "manifest": files})
    lines = run("show", "team/llama:v3", "--agent", agent.address).stdout.splitlines()
    assert lines[1] == f"digest:     blake3:{HEX}"
    assert "generation: 4" in lines
    assert "here:       no" in lines
    assert lines[-1].split() == ["a.safetensors", "5.00", "MB", "20"]
