"""Compile caches through real agents: saved, restored, refused."""

import concurrent.futures
import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pcache import compile_cache
from p2pcache.agent.embedded import run_embedded
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.format import compile_cache_key as cc
from p2pcache.errors import IntegrityError, NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io.files import stable_copy
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.resolve import NodeAgent

FIELDS = {name: "1" for name in cc.FIELDS if name not in ("engine", "model")}
HOW: dict[str, Any] = {"engine": "vllm", "fields": FIELDS}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stable_copy, "SETTLE_S", 0.05)


@contextlib.contextmanager
def agent(folder: Path, name: str, trusts: str = "team") -> Iterator[NodeAgent]:
    (folder / "origin").mkdir(exist_ok=True)
    settings = AgentSettings(
        listen="127.0.0.1:0", cache_dir=str(folder / name), socket=str(folder / f"{name}.sock"),
        origin=f"file://{folder}/origin", min_free_bytes=0, shutdown_s=1.0,
        compile_cache_namespaces=trusts,
    )  # fmt: skip
    with run_embedded(settings) as socket:
        yield NodeAgent(AgentClient(f"unix://{socket}"), None, "", "team")


def make_cache(folder: Path) -> Path:
    (folder / "xx").mkdir(parents=True)
    (folder / "xx" / "kernel.so").write_bytes(os.urandom(300_000))
    (folder / "xx" / "kernel.py").write_text("print()")
    (folder / "empty").write_bytes(b"")
    (folder / "a.lock").write_bytes(b"")
    for number, path in enumerate(["xx/kernel.py", "xx/kernel.so", "empty"]):
        os.utime(folder / path, ns=(1, 1_700_000_000_000_000_000 + number))
    return folder


def push(here: NodeAgent, folder: Path, ref: str) -> None:
    """As `p2pcache push` does."""
    compile_cache._push(here.client, Ref.parse(ref), folder, force=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*")
        if p.is_file() and p.name != cc.NOTE and p.suffix != ".lock"
    }  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, NodeAgent]]:
    """A model and its cache in storage, and an agent that hasn't pulled anything."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(os.urandom(1000))
    source = make_cache(folder / "cache")
    with agent(folder, "first") as first:
        push(first, folder / "model", "team/m:v1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stable_copy, "SETTLE_S", 0.05)
            saved = compile_cache.save("team/m:v1", source, **HOW, here=first)
            assert saved.done
            assert saved.files == 3
            again = compile_cache.save("team/m:v1", source, **HOW, here=first)
            assert not again.done
    with agent(folder, "second") as second:
        yield folder, second


def test_restored_bit_for_bit_for_its_owner_only(
    stored: tuple[Path, NodeAgent], tmp_path: Path
) -> None:
    folder, here = stored
    target = tmp_path / "deep" / "cache"
    done = compile_cache.restore("team/m:v1", target, **HOW, here=here)
    assert (done.done, done.files) == (True, 3)  # as many as were saved
    assert done.ref.name == "m-cc"
    assert content(target) == content(folder / "cache")
    for path in [target, *target.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
        assert path.stat().st_uid == os.geteuid()
    for name in ("xx/kernel.so", "xx/kernel.py", "empty"):
        assert (target / name).stat().st_mtime_ns == (folder / "cache" / name).stat().st_mtime_ns
    (target / "grown").write_text("the engine added this")
    again = compile_cache.restore("team/m:v1", target, **HOW, here=here)
    assert not again.done
    assert (target / "grown").exists()
    assert names(target.parent) == ["cache"]


def test_another_key_is_another_cache(stored: tuple[Path, NodeAgent], tmp_path: Path) -> None:
    _, here = stored
    for change in (
        {"fields": FIELDS | {"device": "NVIDIA A100"}}, {"engine": "sglang"},
        {"extra": {"tensor_parallel_size": "2"}}, {"fields": FIELDS | {"model": "0" * 64}},
    ):  # fmt: skip
        with pytest.raises(NotFound, match="compile-cache save"):
            compile_cache.restore("team/m:v1", tmp_path / "c", **{**HOW, **change}, here=here)
    assert not (tmp_path / "c").exists()


def test_other_content_is_not_overwritten(stored: tuple[Path, NodeAgent], tmp_path: Path) -> None:
    _, here = stored
    target = tmp_path / "c"
    target.mkdir()
    (target / "mine").write_text("keep")
    with pytest.raises(UsageError, match="holds something else"):
        compile_cache.restore("team/m:v1", target, **HOW, here=here)
    assert names(target) == ["mine"]
    other = cc.make_key({**FIELDS, "engine": "other", "model": ""}, {})
    (target / cc.NOTE).write_bytes(cc.encode_note(other, {}))
    with pytest.raises(UsageError, match="holds something else"):
        compile_cache.restore("team/m:v1", target, **HOW, here=here)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(UsageError, match="not a directory"):
        compile_cache.restore("team/m:v1", tmp_path / "link", **HOW, here=here)


def test_a_directory_that_others_can_write_to_is_not_trusted(
    stored: tuple[Path, NodeAgent], tmp_path: Path
) -> None:
    """The right note in it, put there by anybody."""
    _, here = stored
    target = tmp_path / "c"
    target.mkdir()
    target.chmod(0o777)
    key = compile_cache.find("team/m:v1", **HOW, here=here).key
    (target / cc.NOTE).write_bytes(cc.encode_note(key, {}))
    with pytest.raises(UsageError, match="holds something else"):
        compile_cache.restore("team/m:v1", target, **HOW, here=here)
    if os.geteuid() == 0:
        target.chmod(0o700)
        os.chown(target, 12345, 12345)
        with pytest.raises(NotAllowed, match="belongs to user 12345"):
            compile_cache.restore("team/m:v1", target, **HOW, here=here)


def test_an_interrupted_restore_is_repeated(stored: tuple[Path, NodeAgent], tmp_path: Path) -> None:
    """In place, as on a mount: killed after the note was moved up."""
    folder, here = stored
    target = tmp_path / "c"
    target.mkdir(mode=0o700)
    key = compile_cache.find("team/m:v1", **HOW, here=here).key
    (target / cc.NOTE).write_bytes(cc.encode_note(key, {}))
    (target / ".c.p2pcache-123456").mkdir()
    assert compile_cache._restored_key(target) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("p2pcache.io.files.materialise._fixed", lambda _target: True)
        assert compile_cache.restore("team/m:v1", target, **HOW, here=here).done
    assert content(target) == content(folder / "cache")
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_a_failed_restore_leaves_nothing(
    stored: tuple[Path, NodeAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place the note is moved up first; without the other files it would be wrong."""
    _, here = stored
    target = tmp_path / "c"
    target.mkdir()
    monkeypatch.setattr("p2pcache.io.files.materialise._fixed", lambda _target: True)
    rename, calls = os.rename, []

    def failing(*args: Any, **options: Any) -> None:
        calls.append(args[0])
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        rename(*args, **options)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(P2PCacheError, match="Input/output"):
        compile_cache.restore("team/m:v1", target, **HOW, here=here)
    assert calls[0] == cc.NOTE
    assert names(target) == []
    assert compile_cache.restore("team/m:v1", target, **HOW, here=here).done


@pytest.mark.parametrize("in_place", [False, True])
def test_of_many_restores_at_once_one_fills_the_directory(
    stored: tuple[Path, NodeAgent], tmp_path: Path, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, here = stored
    target = tmp_path / "c"
    if in_place:
        target.mkdir()
        monkeypatch.setattr("p2pcache.io.files.materialise._fixed", lambda _target: True)

    def one(_: int) -> bool:
        return compile_cache.restore("team/m:v1", target, **HOW, here=here).done

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 1
    assert content(target) == content(folder / "cache")
    assert names(tmp_path) == ["c"]


def test_another_restore_that_ends_meanwhile_is_accepted(
    stored: tuple[Path, NodeAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is missing at the first check and complete at the second."""
    folder, here = stored
    target = tmp_path / "c"
    look = compile_cache._restored_key
    looks: list[Path] = []

    def slow_look(path: Path) -> cc.Key | None:
        found = look(path)
        if not looks:
            looks.append(path)
            assert compile_cache.restore("team/m:v1", target, **HOW, here=here).done
        return found

    monkeypatch.setattr(compile_cache, "_restored_key", slow_look)
    assert not compile_cache.restore("team/m:v1", target, **HOW, here=here).done
    assert content(target) == content(folder / "cache")


def test_untrusted_namespaces_are_refused_by_client_and_agent(
    stored: tuple[Path, NodeAgent], tmp_path: Path
) -> None:
    folder, here = stored
    for trusted in ("", "other"):
        nobody = here._replace(compile_cache_namespaces=trusted)
        for call in (compile_cache.restore, compile_cache.save):
            with pytest.raises(NotAllowed, match=r"in \[client\]"):
                call("team/m:v1", folder / "cache", **HOW, here=nobody)
    ref = compile_cache.find("team/m:v1", **HOW, here=here).ref.short
    with agent(folder, "strict", trusts="other") as strict:
        with pytest.raises(NotAllowed, match=r"in \[agent\]"):
            compile_cache.restore("team/m:v1", tmp_path / "c", **HOW, here=strict)
        with pytest.raises(NotAllowed, match=r"in \[agent\]"):
            list(strict.client.pull(ref))
        with pytest.raises(NotAllowed):
            list(strict.client.pull(ref, include=["xx/*"]))
        with pytest.raises(NotAllowed):
            list(strict.client.load(ref, needed=False))
        assert strict.client.models() == []
        with pytest.raises(NotAllowed, match=r"in \[agent\]"):
            compile_cache.save(
                "team/m:v1", folder / "cache", **HOW, extra={"a": "b"}, here=strict
            )  # fmt: skip
    assert not (tmp_path / "c").exists()


def test_a_ref_with_a_digest_is_refused(stored: tuple[Path, NodeAgent], tmp_path: Path) -> None:
    """`trusted/x@blake3:..` may be what somebody pushed elsewhere."""
    folder, here = stored
    evil = make_cache(tmp_path / "evil")
    key = compile_cache.find("team/m:v1", **HOW, here=here).key
    (evil / cc.NOTE).write_bytes(cc.encode_note(key, {}))
    with agent(folder, "elsewhere", trusts="evil") as pusher:
        push(pusher, evil, "evil/m-cc:x")
        digest = str(pusher.client.model("evil/m-cc:x")["digest"])
    with pytest.raises(NotAllowed, match="leave the digest out"):
        list(here.client.pull(f"team/m-cc@blake3:{digest}"))
    with pytest.raises(NotAllowed):
        list(here.client.pull("evil/m-cc:x"))


def test_the_note_in_a_cache_must_have_the_same_key(
    stored: tuple[Path, NodeAgent], tmp_path: Path
) -> None:
    _, here = stored
    extra = {"forged": "yes"}
    wanted = compile_cache.find("team/m:v1", **HOW, extra=extra, here=here)
    forged = make_cache(tmp_path / "forged")
    other = cc.make_key(
        {**FIELDS, "engine": "vllm", "device": "NVIDIA A100", "model": wanted.key.model}, extra
    )
    (forged / cc.NOTE).write_bytes(cc.encode_note(other, {}))
    push(here, forged, wanted.ref.short)
    with pytest.raises(IntegrityError, match="device is '1' here and 'NVIDIA A100' there"):
        compile_cache.restore("team/m:v1", tmp_path / "c", **HOW, extra=extra, here=here)
    bare = compile_cache.find("team/m:v1", **HOW, extra={"bare": "yes"}, here=here)
    push(here, make_cache(tmp_path / "bare"), bare.ref.short)
    with pytest.raises(IntegrityError, match="is no compile cache"):
        compile_cache.restore("team/m:v1", tmp_path / "c", **HOW, extra={"bare": "yes"}, here=here)
    assert not (tmp_path / "c").exists()


def test_replace_stores_a_cache_again(stored: tuple[Path, NodeAgent], tmp_path: Path) -> None:
    _, here = stored
    how = {**HOW, "extra": {"replaced": "yes"}, "here": here}
    source = make_cache(tmp_path / "a")
    assert compile_cache.save("team/m:v1", source, **how).done
    (source / "more").write_text("more")
    assert not compile_cache.save("team/m:v1", source, **how).done
    assert compile_cache.save("team/m:v1", source, **how, replace=True).done
    compile_cache.restore("team/m:v1", tmp_path / "b", **how)
    assert content(tmp_path / "b") == content(source)
    assert names(tmp_path) == ["a", "b"], "nothing is left beside"


def test_a_missing_engine_and_unknown_fields_are_refused(stored: tuple[Path, NodeAgent]) -> None:
    _, here = stored
    with pytest.raises(UsageError, match="--field engine_version=VERSION"):
        compile_cache.find("team/m:v1", engine="no-such-engine", here=here)
    with pytest.raises(UsageError, match="no field 'gpu'"):
        compile_cache.find("team/m:v1", engine="vllm", fields={"gpu": "x"}, here=here)
    with pytest.raises(UsageError, match="extra 'x'"):
        compile_cache.find("team/m:v1", **HOW, extra="x", here=here)  # type: ignore[arg-type]


def test_an_empty_directory_name_is_refused(
    stored: tuple[Path, NodeAgent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--dir "$VLLM_CACHE_ROOT"` where that isn't set: not the working directory, all of which was stored."""
    _, here = stored
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("x")
    with pytest.raises(UsageError, match="has no name"):
        compile_cache.save("team/m:v1", "", **HOW, here=here, replace=True)
    (tmp_path / "secret").unlink()
    with pytest.raises(UsageError, match="has no name"):
        compile_cache.restore("team/m:v1", "", **HOW, here=here)
    assert list(tmp_path.iterdir()) == []
