"""From names to sources: a name that can't be is refused with advice."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from loadtest.kit.cluster import free_ports
from p2pcache.agent.embedded import run_embedded
from p2pcache.agent.jobs import loads
from p2pcache.errors import (
    Conflict,
    Lost,
    NoAgent,
    NotFound,
    P2PCacheError,
    Unreachable,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io.blobs.blob_file import OpenFile
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.source.agent_source import AgentSource
from p2pcache.loader.source.directory import DirectorySource
from tests.cli import fake_agent as fakes
from tests.loader.loader_kit import Spec, torch_bytes, write
from tests.loader.source.agent_kit import agent_settings

SHAPE = (12, 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(
        {"w": torch.arange(120.0).reshape(SHAPE), "b": torch.ones(3)}, folder / "m.safetensors"
    )
    return folder


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("modells/llama", Unreachable),
        ("meta-llama/Llama-3.1-8B", Unreachable),
        ("a/b/c", UsageError),
    ],
)
def test_the_error_of_a_ref_mentions_directories(
    tmp_path: Path, name: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=re.escape(f"nor is there a directory '{name}'")):
        p2pcache.load(name, agent=f"unix://{tmp_path}/none.sock")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The cache of an agent that isn't there now, with two versions of a model; the older one is `old`."""
    name = tmp_path / "cache" / "models" / "team" / "m"
    for number, tag in enumerate(("old", "v1")):
        tree = name / f"@{str(number) * 64}"
        tree.mkdir(parents=True)
        save_file({"w": torch.full((2,), float(number))}, tree / "m.safetensors")
        (name / tag).symlink_to(tree.name)
    return tmp_path / "cache"


def test_a_complete_model_is_loaded_by_name_without_an_agent(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agent = f"unix://{tmp_path}/none.sock"
    with pytest.raises(Unreachable):
        p2pcache.load("team/m:v1", agent=agent)
    monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(cache / "models"))
    assert p2pcache.load("Team/M:v1", agent=agent)["w"].tolist() == [1, 1]
    assert p2pcache.load(f"team/m@blake3:{'0' * 64}", agent=agent)["w"].tolist() == [0, 0]
    assert "no agent answers" in caplog.text
    assert p2pcache.snapshot("team/m:old", agent=agent).name == f"@{'0' * 64}"
    with pytest.raises(Unreachable):
        p2pcache.snapshot("team/m:v2", agent=agent)
    monkeypatch.delenv("P2PCACHE_MODELS_DIR")
    settings = tmp_path / "config.toml"
    settings.write_text(f'[agent]\ncache_dir = "{cache}"\n')
    monkeypatch.setenv("P2PCACHE_CONFIG", str(settings))
    with p2pcache.safe_open("team/m:v1", agent=agent) as found:
        (cache / "models/team/m/v1").unlink()
        (cache / "models/team/m/v1").symlink_to(f"@{'0' * 64}")
        assert found.get_tensor("w").tolist() == [1, 1], "the tag moves in the middle of a load"


@pytest.fixture
def attaches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One ref for each time that the agent was asked."""
    original, seen = AgentSource.attach, list[str]()

    def attach(client: AgentClient, ref: Ref, **more: Any) -> AgentSource:
        seen.append(str(ref))
        return original(client, ref, **more)

    monkeypatch.setattr(AgentSource, "attach", attach)
    return seen


@pytest.fixture
def taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent gives a loader no time to open what it has told: a loader may be slower than the time that it gives."""
    monkeypatch.setattr(loads, "OPENS_S", 0.0)


def test_what_the_agent_refuses_is_not_asked_for_again(tmp_path: Path, attaches: list[str]) -> None:
    """Such as a model that an operator removes."""
    refusal = {"code": 10, "message": "team/m:v1 was removed while it was pulled; pull it again"}
    with fakes.fake_agent(tmp_path) as agent:
        agent.document("POST /v1/load", refusal, status=409)
        with pytest.raises(Conflict, match="was removed"):
            p2pcache.load("team/m:v1", agent=agent.address)
    assert len(attaches) == 1


@pytest.mark.usefixtures("taken_at_once")
@pytest.mark.parametrize(("when", "asked"), [("before", 2), ("listed", 2), ("open", 1)])
def test_a_model_that_is_evicted_before_it_is_open_comes_back(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, attaches: list[str], when: str, asked: int
) -> None:  # fmt: skip
    """Another pull needed the room between the agent's answer and the load's first look."""
    pending = [when]
    (tmp_path / "origin").mkdir()
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        agent = f"unix://{socket}"
        p2pcache.push(folder, "team/m:v1", agent=agent)

        def evict(moment: str) -> None:
            if pending == [moment]:
                pending.clear()
                assert AgentClient(agent).evict("team/m:v1")["evicted"]

        class Watched(DirectorySource):
            def __init__(self, path: Path, name: str = "") -> None:
                evict("before")
                super().__init__(path, name)
                evict("listed")

            def _file(self, path: str) -> OpenFile:
                file = super()._file(path)
                evict("open")
                return file

        monkeypatch.setattr("p2pcache.loader.resolve.DirectorySource", Watched)
        assert p2pcache.load("team/m:v1", agent=agent)["b"].tolist() == [1, 1, 1]
    assert not pending
    assert len(attaches) == asked


@pytest.mark.usefixtures("taken_at_once")
def test_a_model_that_goes_and_comes_back_while_it_is_listed_is_whole(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, attaches: list[str]
) -> None:
    original, steps = Path.is_file, ["n.safetensors", "o.safetensors"]
    for name in steps:
        save_file({name: torch.ones(3)}, folder / name)
    (tmp_path / "origin").mkdir()
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        agent = AgentClient(f"unix://{socket}")
        p2pcache.push(folder, "team/m:v1", agent=f"unix://{socket}")

        def is_file(path: Path) -> bool:
            if steps[:1] == [path.name] and "models" in path.parts:
                if len(steps) == 2:
                    agent.evict("team/m:v1")
                else:
                    list(agent.pull("team/m:v1"))
                found = original(path)
                del steps[0]
                return found
            return original(path)

        monkeypatch.setattr(Path, "is_file", is_file)
        found = p2pcache.load("team/m:v1", agent=f"unix://{socket}")
    assert found.keys() == {"w", "b", "n.safetensors", "o.safetensors"}
    assert not steps
    assert len(attaches) == 2


@pytest.mark.parametrize("call", [p2pcache.load, p2pcache.snapshot])
def test_a_wrong_models_directory_is_said_to_be_wrong(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, attaches: list[str], call: Any
) -> None:
    (tmp_path / "origin").mkdir()
    (tmp_path / "other").mkdir()
    with run_embedded(agent_settings(tmp_path, tmp_path / "origin")) as socket:
        p2pcache.push(folder, "team/m:v1", agent=f"unix://{socket}")
        for name in ("other", "none"):
            attaches.clear()
            monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(tmp_path / name))
            with pytest.raises(NotFound, match=r"isn't visible here.*P2PCACHE_MODELS_DIR"):
                call("team/m:v1", agent=f"unix://{socket}")
            assert len(attaches) <= 2


@pytest.mark.parametrize("length", [300, (9 << 20) - 4096, 10 << 20])
def test_a_file_whose_length_was_changed_is_mended_under_the_load(
    tmp_path: Path, length: int
) -> None:
    """Most of its chunks are missing when it is opened; none is read before it is proved again."""
    (tmp_path / "origin").mkdir()
    (tmp_path / "folder").mkdir()
    bodies = write(tmp_path / "folder/m.safetensors", [Spec(n, "U8", (3 << 20,)) for n in "abc"])
    settings = agent_settings(tmp_path, tmp_path / "origin", origin_bytes_per_s=0)
    with run_embedded(settings) as socket:
        agent = f"unix://{socket}"
        p2pcache.push(tmp_path / "folder", "team/m:v1", agent=agent)
        [blob] = (tmp_path / "cache/blobs").iterdir()
        blob.chmod(0o600)
        os.truncate(blob, length)
        found = p2pcache.load("team/m:v1", agent=agent, timeout_s=60)
        assert {name: torch_bytes(tensor) for name, tensor in found.items()} == bodies
        whole = p2pcache.snapshot("team/m:v1", agent=agent) / "m.safetensors"
        assert whole.read_bytes() == (tmp_path / "folder/m.safetensors").read_bytes()


def test_what_an_agent_refuses_is_not_loaded_by_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows whether an old tag may be used: while the tracker is away nobody knows which signature it needs."""
    monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(cache / "models"))
    refusal = {"code": 8, "message": "the tracker is away"}
    with fakes.fake_agent(tmp_path) as agent:
        agent.document("POST /v1/load", refusal, status=503)
        agent.stream("POST /v1/pull", [{"event": "error", **refusal}])
        for call in (p2pcache.load, p2pcache.snapshot):
            with pytest.raises(Unreachable, match="the tracker is away"):
                call("team/m:v1", agent=agent.address)


def test_an_agent_that_is_lost_after_it_named_another_model_is_not_overridden(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(cache / "models"))
    with fakes.fake_agent(tmp_path) as agent:
        agent.stream("POST /v1/pull", [fakes.resolved("team/m:v1")], cut=True)
        with pytest.raises(Lost):
            p2pcache.snapshot("team/m:v1", agent=agent.address)


def test_the_cache_that_is_looked_in_is_the_agents(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of commands that work alone, nor this host's for an agent of another one."""
    here, there = f"unix://{tmp_path}/none.sock", f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.setenv("P2PCACHE_CACHE_DIR", str(cache))
    with pytest.raises(NoAgent):
        p2pcache.snapshot("team/m:v1", agent=here)
    settings = tmp_path / "config.toml"
    settings.write_text(f'[agent]\ncache_dir = "{cache}"\n')
    monkeypatch.setenv("P2PCACHE_CONFIG", str(settings))
    monkeypatch.setenv("P2PCACHE_CACHE_DIR", str(tmp_path / "other"))
    assert p2pcache.snapshot("team/m:v1", agent=here).name == f"@{'1' * 64}"
    with pytest.raises(NoAgent):
        p2pcache.snapshot("team/m:v1", agent=there)
    monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(cache / "models"))
    assert p2pcache.snapshot("team/m:v1", agent=there).name == f"@{'1' * 64}"


@pytest.mark.parametrize("entry", ["@" + "2" * 64 + "+0123456789abcdef", "elsewhere"])
def test_what_is_no_whole_model_is_not_loaded_by_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    monkeypatch.setenv("P2PCACHE_MODELS_DIR", str(cache / "models"))
    (cache / "models/team/m" / entry).mkdir()
    (cache / "models/team/m/part").symlink_to(entry)
    with pytest.raises(Unreachable):
        p2pcache.load("team/m:part", agent=f"unix://{tmp_path}/none.sock")


def test_an_empty_name_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as os.environ.get("MODEL", ""): it isn't the working directory."""
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match="empty"):
        p2pcache.load("")
    assert len(p2pcache.load(".")) == 2


@pytest.mark.parametrize("name", [None, 5, b"team/m:v1", []])
@pytest.mark.parametrize("call", [p2pcache.load, p2pcache.safe_open, p2pcache.snapshot])
def test_a_name_of_a_wrong_type_is_refused(call: Any, name: Any) -> None:
    with pytest.raises(UsageError, match=f"the model's name can't be a {type(name).__name__}"):
        call(name)


def test_snapshot_takes_refs_only(folder: Path) -> None:
    with pytest.raises(UsageError, match="not a model ref"):
        p2pcache.snapshot(folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", [5, b"unix:///a.sock", "foo", "http://127.0.0.1:99999"])
def test_a_wrong_agent_address_is_refused(agent: Any) -> None:
    with pytest.raises(UsageError, match="not an agent address"):
        p2pcache.load("team/m:v1", agent=agent)


def test_a_password_in_an_agent_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="--token-file") as refused:
        p2pcache.load("team/m:v1", agent="http://u:s3cret@127.0.0.1:1")
    assert "s3cret" not in str(refused.value)


def test_a_file_without_the_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"PK")
    with pytest.raises(NotFound, match=r"model\.bin: is no \.safetensors file"):
        p2pcache.load(tmp_path / "model.bin")


def test_a_ref_too_long_for_a_path() -> None:
    with pytest.raises(P2PCacheError):
        p2pcache.load("a" * 5000)


@pytest.mark.parametrize("name", ["include", "exclude"])
@pytest.mark.parametrize("wrong", [3, [3], [b"*.json"]])
def test_patterns_of_another_type_are_refused(tmp_path: Path, name: str, wrong: Any) -> None:
    with fakes.fake_agent(tmp_path) as agent, pytest.raises(UsageError, match=f"{name}: expected"):
        p2pcache.snapshot("team/m:v1", agent=agent.address, **{name: wrong})
