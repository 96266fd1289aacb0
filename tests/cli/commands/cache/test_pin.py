import json
import os
import time
from pathlib import Path

import click
import pytest

from p2pcache.errors import UsageError
from p2pcache.io.clock import start_of
from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent, done, resolved

ROW = {
    "kind": "pin", "name": "prod", "ref": "team/a:v1", "digest": "", "made": 1.0, "ends": 0.0, "pid": 0,
}  # fmt: skip


def test_pin_and_unpin(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/pins", ROW)
    agent.document("DELETE /v1/pins", {"unpinned": [ROW]})
    told = run("pin", "team/a:v1", "--name", "prod", "--for", "30d", "--agent", agent.address)
    assert told.stdout == "pinned team/a:v1 by prod for 30d\n"
    assert json.loads(agent.bodies[0]) == {"ref": "team/a:v1", "name": "prod", "for_s": 30 * 86400}
    document = json.loads(run("pin", "a", "--name", "x", "--json", "--agent", agent.address).stdout)
    assert (document["ends_at"], document["schema"]) == (None, 1)
    told = run("unpin", "team/a:v1", "--name", "prod", "--agent", agent.address)
    assert told.stdout == "unpinned team/a:v1 by prod\n"
    assert agent.seen[-1][1] == "/v1/pins?ref=team%2Fa%3Av1&name=prod"


def test_pins_says_what_is_left(agent: FakeAgent, run: Run) -> None:
    held = ROW | {
        "kind": "hold",
        "name": "svc",
        "digest": HEX,
        "ends": time.time() + 7205,
        "pid": 7,
    }
    agent.document("GET /v1/pins", {"pins": [ROW, held]})
    lines = run("pins", "--agent", agent.address).stdout.splitlines()
    assert lines[0].split() == ["KIND", "NAME", "REF", "LEFT", "PID"]
    assert lines[1].split() == ["pin", "prod", "team/a:v1", "-", "-"]
    assert lines[2].split() == ["hold", "svc", "team/a:v1", "2h00m", "7"]
    rows = json.loads(run("pins", "--json", "--agent", agent.address).stdout)["pins"]
    assert rows[1]["digest"] == f"blake3:{HEX}"
    assert rows[1]["ends_at"].endswith("Z")


def test_release(agent: FakeAgent, run: Run) -> None:
    agent.document("POST /v1/release", {"released": [ROW | {"name": "svc"}]})
    assert run("release", "svc", "--agent", agent.address).stdout == "released team/a:v1 from svc\n"


def test_pull_holds(agent: FakeAgent, run: Run, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [resolved(), done(tmp_path)])
    flags = ("--hold", "svc", "--for", "7d", "--hold-pid", os.getpid())
    assert run("pull", "llama", *flags, "--agent", agent.address).exit_code == 0
    body = json.loads(agent.bodies[0])
    assert (body["hold"], body["hold_s"], body["hold_pid"]) == ("svc", 7 * 86400, os.getpid())
    assert body["hold_started"] == start_of(os.getpid())
    run("pull", "llama", "--agent", agent.address)
    assert "hold" not in json.loads(agent.bodies[1]), "an older agent doesn't know the key"


@pytest.mark.parametrize(
    "flags", [("--for", "7d"), ("--hold-pid", "1"), ("--hold", "x", "--tensors", "*")]
)
def test_odd_holds_are_usage_errors(agent: FakeAgent, run: Run, flags: tuple[str, ...]) -> None:
    failed = run("pull", "llama", *flags, "--agent", agent.address, standalone_mode=False)
    assert isinstance(failed.exception, click.UsageError)


@pytest.mark.parametrize("flags", [
    ("pin", "a", "--name", "x", "--for", "0s"), ("pin", "a", "--name", "x", "--for", ""),
    ("pull", "a", "--hold", "x", "--for", "0"), ("pull", "a", "--hold", "x", "--hold-pid", "0"),
])  # fmt: skip
def test_nothing_is_pinned_for_ever_by_a_zero(
    agent: FakeAgent, run: Run, flags: tuple[str, ...]
) -> None:
    """`--for 0s` was a pin without an end, `--hold-pid 0` a hold without a process."""
    failed = run(*flags, "--agent", agent.address, standalone_mode=False)
    assert isinstance(failed.exception, click.UsageError | UsageError)
    assert not agent.seen
