"""From names to sources: a name that can't be is refused with advice."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import p2pcache
from p2pcache.errors import (
    NotFound,
    P2PCacheError,
    Unreachable,
    UsageError,
)

SHAPE = (12, 10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_file(
        {"w": torch.arange(120.0).reshape(SHAPE), "b": torch.ones(3)}, tmp_path / "m.safetensors"
    )
    return tmp_path


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
