"""A pull whose model is in the cache already: no agent is started, and the tag is asked for."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir, snapshot_download

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.errors import NotFound, OriginUnavailable, UsageError
from p2pcache.ids import Ref
from p2pcache.io.origins.repo import OriginRepo
from tests.cli.conftest import Run
from tests.cli.standalone.model_kit import same


def test_a_second_pull_prints_the_same_directory(run: Run, model: Path, tmp_path: Path) -> None:
    first = run("pull", "team/m:v1")
    assert first.exit_code == 0, first.exception
    path = Path(first.stdout.rstrip("\n"))
    assert path.parent == tmp_path / "xdg/p2pcache/models/team/m"
    assert same(model, path)
    assert "all from storage" in first.stderr
    again = run("pull", "team/m:v1")
    assert again.stdout == first.stdout
    assert "already here" in again.stderr
    done = json.loads(
        run("pull", "--json", f"team/m@blake3:{path.name[1:]}").stdout.splitlines()[-1]
    )
    assert (done["bytes_local"], done["path"]) == (3_000_002, str(path))


def test_a_missing_tag_is_said_alike_with_and_without_models_in_the_cache(
    run: Run, model: Path
) -> None:
    """Once the cache had a model, the tags that there are weren't named, nor was the failure in the history."""
    first = run("pull", "team/m:v9")
    run("pull", "team/m:v1")
    again = run("pull", "team/m:v9")
    assert isinstance(again.exception, NotFound)
    assert str(again.exception) == str(first.exception)
    assert "team/m has the tag" in str(again.exception)
    rows = json.loads(run("history", "--json").stdout)["history"]
    assert [(row["ref"], row["code"]) for row in rows] == [
        ("team/m:v9", 3), ("team/m:v1", 0), ("team/m:v9", 3),
    ]  # fmt: skip


def test_the_second_pull_starts_no_agent(run: Run, model: Path, tmp_path: Path) -> None:
    run("pull", "team/m:v1")
    report = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "p2pcache.cli.main", "pull", "team/m:v1"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    assert "sqlite3" in report
    assert not any(
        name in report for name in ("aiohttp", "uvloop", "asyncio.events", "rich", "botocore")
    )


def test_pull_to_copies_or_links_the_files(run: Run, model: Path, tmp_path: Path) -> None:
    result = run("pull", "team/m:v1", "--to", tmp_path / "out")
    assert result.stdout == f"{tmp_path}/out\n"
    assert same(model, tmp_path / "out")
    assert run("pull", "team/m:v1", "--to", tmp_path / "out").exit_code == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    assert isinstance(run("pull", "team/m:v1", "--to", tmp_path / "other").exception, UsageError)
    linked = run("pull", "team/m:v1", "--to", tmp_path / "links", "--link", "symlink")
    assert "warning: --link symlink" in linked.stderr
    assert (tmp_path / "links/weights.bin").is_symlink()


def test_pull_into_a_hub_cache_is_found_by_its_clients(
    run: Run, model: Path, tmp_path: Path
) -> None:
    hub = tmp_path / "hub"
    words = ("pull", "Team/M:v1", "--layout", "hf-cache", "--to", hub)
    first = run(*words)
    assert first.exit_code == 0, first.exception
    again = run(*words)
    assert again.stdout == first.stdout
    snapshot = Path(first.stdout.strip())
    assert snapshot.parent == hub / "models--Team--M/snapshots"
    found = snapshot_download("Team/M", revision="v1", cache_dir=hub, local_files_only=True)
    assert found == str(snapshot)
    assert same(model, snapshot)
    assert not list(hub.glob("models--Team--M/refs/main"))
    (model / "weights.bin").write_bytes(os.urandom(1000))
    run("push", model, "team/m:latest")
    run("pull", "Team/M", "--layout", "hf-cache", "--to", hub, "--link", "symlink")
    found = snapshot_download("Team/M", cache_dir=hub, local_files_only=True)
    assert found != str(snapshot)
    assert same(model, Path(found))
    assert same(model, Path(run("pull", "team/m").stdout.strip()))
    (report,) = scan_cache_dir(hub).repos
    assert {name for one in report.revisions for name in one.refs} == {"v1", "main", "latest"}


@pytest.mark.parametrize(
    "words", [("--layout", "hf-cache"), ("--layout", "hf-cache", "--to", "x", "--include", "*")]
)
def test_a_layout_wants_a_whole_model_and_a_place(run: Run, words: tuple[str, ...]) -> None:
    result = run("pull", "team/m:v1", *words)
    assert result.exit_code == 2
    assert "--layout puts" in result.stderr


def test_a_name_that_no_hub_has_gets_into_no_hub_cache(
    run: Run, model: Path, tmp_path: Path
) -> None:
    run("push", model, "team/m--x:v1")
    result = run("pull", "team/m--x:v1", "--layout", "hf-cache", "--to", tmp_path / "hub")
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "hub").exists()


def test_a_tag_that_moved_is_followed(run: Run, model: Path) -> None:
    first = run("pull", "team/m:v1").stdout
    (model / "weights.bin").write_bytes(os.urandom(1000))
    run("push", model, "team/m:v1")
    second = run("pull", "team/m:v1").stdout
    assert second != first
    assert same(model, Path(second.strip()))
    assert Path(first.strip()).is_dir(), "who reads the old version goes on reading it"


def test_a_tag_that_went_back_is_refused_unless_forced(
    run: Run, model: Path, tmp_path: Path
) -> None:
    old = run("pull", "team/m:v1").stdout
    shutil.copytree(tmp_path / "origin", tmp_path / "backup")
    (model / "weights.bin").write_bytes(b"new")
    run("push", model, "team/m:v1")
    run("pull", "team/m:v1")
    shutil.rmtree(tmp_path / "origin")
    (tmp_path / "backup").rename(tmp_path / "origin")
    result = run("pull", "team/m:v1")
    assert result.exit_code != 0
    assert "went back" in str(result.exception)
    assert run("pull", "team/m:v1", "--force-generation").stdout == old


def test_a_missing_tag_and_a_wrong_storage_are_different_errors(
    run: Run, model: Path, tmp_path: Path
) -> None:
    assert isinstance(run("pull", "team/none").exception, NotFound)
    assert isinstance(
        run("pull", "team/m:v1", "--origin", f"file://{tmp_path}/nowhere").exception, NotFound
    )
    assert isinstance(run("pull", "team/m:v1", "--origin", "ftp://x").exception, UsageError)


def test_the_last_tag_seen_is_used_while_storage_is_silent(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run("pull", "team/m:v1").stdout

    def silent(*_: object) -> None:
        raise OriginUnavailable("nobody answers")

    monkeypatch.setattr("p2pcache.io.origins.repo.OriginRepo.get_tag", silent)
    result = run("pull", "team/m:v1")
    assert result.stdout == path
    assert "as this cache last knew it: nobody answers" in result.stderr


def test_a_complete_model_does_not_wait_for_storage_that_is_away(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run("pull", "team/m:v1").stdout
    over = threading.Event()

    def silent(*_: object) -> TagRecord:
        over.wait(60)
        raise OriginUnavailable("too late")

    monkeypatch.setattr(OriginRepo, "get_tag", silent)
    monkeypatch.setattr(OriginRepo, "trouble", OriginUnavailable("connection refused"))
    began = time.monotonic()
    done = run("pull", "team/m:v1")
    over.set()
    assert done.stdout == path
    assert "as this cache last knew it: storage" in done.stderr
    assert "connection refused" in done.stderr
    assert time.monotonic() - began < 3


def test_a_pull_says_that_it_waits_for_a_slow_storage(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run("pull", "team/m:v1").stdout
    quick, pauses = OriginRepo.get_tag, iter([2.0, 0.3])

    def slow(repo: OriginRepo, ref: Ref) -> TagRecord:
        time.sleep(next(pauses))
        return quick(repo, ref)

    monkeypatch.setattr(OriginRepo, "get_tag", slow)
    monkeypatch.setattr("p2pcache.cli.support.background.WAITING_S", 0.1)
    result = run("pull", "team/m:v1")
    assert result.stdout == path
    assert "waiting for storage to answer" in result.stderr
    assert "waiting" not in run("pull", "team/m:v1", "--quiet").stderr
