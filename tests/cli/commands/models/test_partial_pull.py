"""`pull` of a part: --include and --exclude for files, --tensors for chunks."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.daemons import wait_until
from p2pcache.agent.embedded import run_embedded
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import NotFound, Unreachable
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import push
from tests.cli.conftest import Run
from tests.loader.loader_kit import Spec, write

REF = "team/m:v1"


@pytest.fixture
def origin(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    specs = [Spec(f"layers.{i}.w", "BF16", (512, 512)) for i in range(8)]
    write(tmp_path / "model/model.safetensors", specs)
    (tmp_path / "model/config.json").write_text("{}")
    (tmp_path / "model/weights.pth").write_bytes(random.Random(1).randbytes(700_000))
    push(tmp_path / "origin", tmp_path / "model", REF)
    return (tmp_path / "origin").as_uri()


@pytest.fixture
def address(tmp_path: Path, origin: str) -> Iterator[str]:
    settings = AgentSettings(
        listen="127.0.0.1:0", cache_dir=str(tmp_path / "cache"), socket=str(tmp_path / "a.sock"),
        origin=origin, min_free_bytes=0, shutdown_s=1.0,
    )  # fmt: skip
    with run_embedded(settings) as socket:
        yield f"unix://{socket}"


def names(folder: str) -> set[str]:
    return {path.name for path in Path(folder.strip()).iterdir()}


def test_files_by_pattern(address: str, run: Run, tmp_path: Path) -> None:
    done = run("pull", REF, "--agent", address, "--include", "*.json", "--include", "*.safe*")
    assert done.exit_code == 0, done.output
    assert names(done.stdout) == {"config.json", "model.safetensors"}
    assert "+" in Path(done.stdout.strip()).name
    copied = run("pull", REF, "--agent", address, "--exclude", "*.pth", "--to", tmp_path / "to")
    assert names(copied.stdout) == {"config.json", "model.safetensors"}
    assert Path(copied.stdout.strip()) == tmp_path / "to"
    none = run("pull", REF, "--agent", address, "--include", "*.gguf")
    assert isinstance(none.exception, NotFound)


def test_files_by_pattern_without_a_daemon(origin: str, run: Run, tmp_path: Path) -> None:
    flags = ["--origin", origin, "--cache-dir", str(tmp_path / "own"), "--quiet"]
    part = run("pull", REF, *flags, "--include", "*.json")
    assert names(part.stdout) == {"config.json"}
    whole = run("pull", REF, *flags)
    assert names(whole.stdout) == {"config.json", "model.safetensors", "weights.pth"}
    again = run("pull", REF, *flags, "--include", "*.json")
    assert names(again.stdout) == {"config.json"}


def test_tensors_by_pattern(address: str, run: Run) -> None:
    done = run("pull", REF, "--agent", address, "--tensors", "layers.[23].w")
    assert (done.exit_code, done.stdout) == (0, ""), done.output
    assert "2 of 8 tensors" in done.stderr
    assert "isn't complete" in done.stderr
    # The last chunk is here before the agent has counted the read that brought it.
    wait_until(lambda: AgentClient(address).status()["bytes"]["origin"] >= 2 * 512 * 1024, 30)
    fetched = AgentClient(address).status()["bytes"]["origin"]
    assert fetched < 4 * 512 * 1024
    told = run("pull", REF, "--agent", address, "--tensors", "layers.2.w", "--json")
    last = json.loads(told.stdout.splitlines()[-1])
    assert (last["event"], last["tensors"], last["bytes"]) == ("done", 1, 512 * 1024)
    assert "path" not in last
    assert AgentClient(address).status()["bytes"]["origin"] == fetched
    none = run("pull", REF, "--agent", address, "--tensors", "none.*")
    assert isinstance(none.exception, NotFound)


@pytest.mark.parametrize("more", [["--to", "x"], ["--include", "*"], ["--force-generation"]])
def test_tensors_go_with_nothing_else(address: str, run: Run, more: list[str]) -> None:
    assert run("pull", REF, "--agent", address, "--tensors", "x", *more).exit_code == 2


def test_tensors_need_an_agent(run: Run) -> None:
    assert isinstance(run("pull", REF, "--tensors", "x").exception, Unreachable)
