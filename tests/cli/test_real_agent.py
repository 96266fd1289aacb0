"""The commands against a real agent in a process of its own, and interrupted work without one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

COMMAND = [sys.executable, "-m", "p2pcache.cli.main"]
pytestmark = pytest.mark.functional


class Node(NamedTuple):
    model: Path
    environment: dict[str, str]
    daemon: psutil.Process | None = None

    def run(self, *args: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
        result = subprocess.run(
            [*COMMAND, *args], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert result.returncode == code, result.stderr
        return result


def make_node(folder: Path, size: int) -> Node:
    model = folder / "model"
    (model / "sub").mkdir(parents=True)
    (model / "weights.bin").write_bytes(os.urandom(size))
    (model / "sub" / "config.json").write_text('{"a": 1}')
    (folder / "origin").mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("P2PCACHE_")}
    return Node(
        model,
        kept
        | {"P2PCACHE_ORIGIN": f"file://{folder}/origin", "XDG_CACHE_HOME": str(folder / "xdg")},
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    made = make_node(folder, 3_000_000)
    settings = [
        "--listen",
        "127.0.0.1:0",
        "--cache-dir",
        str(folder / "cache"),
        "--socket",
        str(folder / "agent.sock"),
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*COMMAND, "agent", *settings], env=made.environment, stderr=log)
    deadline = time.monotonic() + 60
    while not (folder / "agent.sock").exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield made._replace(
        environment=made.environment | {"P2PCACHE_AGENT": f"unix://{folder}/agent.sock"},
        daemon=psutil.Process(process.pid),
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, "an ordered end is exit 0"


def test_a_life_of_a_model(node: Node) -> None:
    pushed = node.run("push", str(node.model), "team/m:v1")
    digest_ref = pushed.stdout.strip()
    assert digest_ref.startswith("team/m:v1@blake3:")
    assert "nothing to upload" in node.run("push", str(node.model), "team/m:v1").stderr
    path = Path(node.run("pull", "team/m:v1").stdout.strip())
    assert (path / "weights.bin").read_bytes() == (node.model / "weights.bin").read_bytes()
    assert node.run("pull", digest_ref).stdout.strip() == str(path)
    assert node.run("ls", "-q").stdout == "team/m:v1\n"
    shown = json.loads(node.run("show", "--json", "team/m:v1").stdout)
    assert (shown["complete"], shown["generation"], shown["files"]) == (True, 1, 2)
    assert "all good" in node.run("verify", "team/m:v1").stderr
    assert "team/m" in node.run("show", "team/m:v1").stdout
    assert "freed" in node.run("rm", "team/m:v1").stdout
    assert node.run("ls", "-q").stdout == ""
    done = json.loads(node.run("pull", "--json", "team/m:v1").stdout.splitlines()[-1])
    assert (done["event"], done["bytes_origin"]) == ("done", done["bytes"])


def test_errors_of_the_agent(node: Node) -> None:
    assert node.run("pull", "team/none", code=3).stdout == ""
    assert node.run("verify", "team/none", code=3).stderr.startswith("p2pcache: error: ")
    assert node.run("rm", "team/none", code=3).stderr.count("\n") == 1
    assert "tracker" in node.run("nodes", code=8).stderr


def test_the_agent_s_state(node: Node) -> None:
    assert "ready" in node.run("status").stdout
    assert json.loads(node.run("status", "--json").stdout)["ready"] is True
    assert json.loads(node.run("ps", "--json").stdout) == {"schema": 1, "pulls": []}
    assert json.loads(node.run("prune", "--dry-run", "--json").stdout)["dry_run"] is True


def test_a_warm_pull_is_quick(node: Node) -> None:
    node.run("push", str(node.model), "warm")
    node.run("pull", "warm")

    def spent() -> float:
        """CPU time of the commands so far and of the agent: other work may run beside us."""
        assert node.daemon is not None
        return sum(os.times()[2:4]) + sum(node.daemon.cpu_times()[:2])

    def once() -> float:
        began = spent()
        node.run("pull", "warm")
        return spent() - began

    assert min(once() for _ in range(3)) < 0.5


@pytest.mark.slow
def test_a_pull_without_a_daemon_that_is_interrupted_resumes(tmp_path: Path) -> None:
    node = make_node(tmp_path, 24_000_000)
    node.run("push", str(node.model), "m")
    slow = node.environment | {"P2PCACHE_ORIGIN_BYTES_PER_S": "4MB"}
    process = subprocess.Popen(
        [*COMMAND, "pull", "m", "--json"],
        env=slow,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    for line in process.stdout:
        if json.loads(line).get("bytes_done", 0) > 4_000_000:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    said = "interrupted; what came stays in the cache; run the command again to resume"
    assert (process.returncode, err) == (130, f"p2pcache: error: {said}\n")
    last = json.loads(out.splitlines()[-1])
    assert (last["event"], last["code"], last["message"]) == ("error", 130, said)
    (left,) = json.loads(node.run("ls", "--json").stdout)["models"]
    assert (left["ref"], left["complete"]) == ("m:latest", False)
    assert re.search(r"m +latest +\S+ +24.0 MB +\d+%, incomplete", node.run("ls").stdout)
    again = json.loads(node.run("pull", "m", "--json").stdout.splitlines()[-1])
    assert again["event"] == "done"
    assert 0 < again["bytes_origin"] < 24_000_000
    assert (Path(again["path"]) / "weights.bin").read_bytes() == (
        node.model / "weights.bin"
    ).read_bytes()
