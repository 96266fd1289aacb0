"""A cache without an agent: looked at, checked, cleared and locked by commands."""

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from p2pcache.cli.standalone.local_cache import LOCK_FILE
from p2pcache.errors import IntegrityError, NotAllowed, NotFound, UsageError
from p2pcache.io.disk.cache_dir import RECORDS
from p2pcache.io.imports.import_folder import FOLDER, ImportFolder
from tests.cli.conftest import Run
from tests.cli.standalone.model_kit import same
from tests.io.disk.owner_kit import give_away, needs_root


@pytest.mark.parametrize("command", [["ls"], ["rm", "m"], ["prune"], ["verify", "m"], ["history"]])
def test_looking_at_a_directory_does_not_make_a_cache_of_it(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    run(*command, "--cache-dir", folder)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    refused = run(*command, "--cache-dir", folder / "config.json")
    assert isinstance(refused.exception, UsageError)


def test_the_cache_can_be_looked_at_and_cleared(run: Run, model: Path) -> None:
    run("pull", "team/m:v1")
    assert run("ls").stdout.splitlines()[1].split()[:2] == ["team/m", "v1"]
    shown = json.loads(run("show", "--json", "team/m:v1").stdout)
    assert (shown["local"], shown["complete"], shown["generation"]) == (True, True, 1)
    assert "all good" in run("verify", "team/m:v1").stderr
    assert "3.01 MB freed" in run("rm", "team/m:v1").stdout
    assert isinstance(run("verify", "team/m:v1").exception, NotFound)
    assert json.loads(run("show", "--json", "team/m:v1").stdout)["local"] is False


def test_the_second_tag_of_a_model_keeps_it(run: Run, model: Path) -> None:
    run("push", model, "team/m:v2")
    run("pull", "team/m:v1")
    run("pull", "team/m:v2")
    assert run("rm", "team/m:v1").stdout == "removed team/m:v1 (0 B freed)\n"
    assert [line.split()[1] for line in run("ls").stdout.splitlines()[1:]] == ["v2"]
    assert "removed" in run("prune", "--all", "--yes").stdout
    assert json.loads(run("ls", "--json").stdout) == {"schema": 1, "models": []}


@pytest.mark.parametrize("pulled", [True, False])
def test_prune_removes_what_an_interrupted_import_left(
    run: Run, model: Path, tmp_path: Path, pulled: bool
) -> None:
    """Also where nothing else is in the cache yet."""
    cache = tmp_path / "cache-of-imports"
    if pulled:
        run("pull", "team/m:v1", "--cache-dir", cache)
    folder = ImportFolder(cache / FOLDER / ("abc0" * 8))
    folder.part("weights.bin").write_bytes(bytes(100_000))
    folder.close()
    planned = run("prune", "--dry-run", "--cache-dir", cache).stdout
    assert planned.startswith("would remove interrupted import " + "abc0" * 8 + " (1 file)\n")
    assert folder.path.exists()
    assert "removed interrupted import abc0" in run("prune", "--cache-dir", cache).stdout
    assert not folder.path.exists()


def test_verify_finds_a_changed_byte(run: Run, model: Path) -> None:
    weights = Path(run("pull", "team/m:v1").stdout.strip()) / "weights.bin"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"x" * 10)
    result = run("verify", "team/m:v1")
    assert isinstance(result.exception, IntegrityError)
    assert "of 13 chunks 1 missing (or changed on disk, and dropped" in str(result.exception)
    healed = run("pull", "team/m:v1")
    assert healed.exit_code == 0
    assert same(model, Path(healed.stdout.strip()))


def test_commands_on_one_cache_run_one_after_the_other(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("pull", "team/m:v1")
    descriptor = os.open(tmp_path / "xdg/p2pcache" / LOCK_FILE, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    plain, held = fcntl.flock, [descriptor]

    def flock(wanted: int, how: int) -> None:
        if how == fcntl.LOCK_EX and held:  # it asked, was refused, and waits from now on
            threading.Timer(0.1, os.close, (held.pop(),)).start()
        plain(wanted, how)

    monkeypatch.setattr("fcntl.flock", flock)
    result = run("pull", "team/m:v1")
    assert held == []
    assert "waiting for it to end" in result.stderr
    assert result.exit_code == 0


def test_a_cache_that_an_agent_holds_is_refused(run: Run, model: Path, tmp_path: Path) -> None:
    run("pull", "team/m:v1")
    descriptor = os.open(tmp_path / "xdg/p2pcache/lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert isinstance(run("ls").exception, UsageError)
    finally:
        os.close(descriptor)


def test_a_cache_directory_that_cannot_be_ends_by_its_cause(
    run: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("none/nowhere")
    for path, cause in (
        ("n" * 300, "File name too long"),
        ("file/cache", "Not a directory"),
        ("file", "File exists"),
        ("circle/cache", "Too many levels of symbolic links"),
        ("nowhere", "File exists"),
        ("/proc/none/cache", "No such file or directory"),
    ):
        refused = run("pull", "team/m:v1", "--cache-dir", tmp_path / path)
        assert isinstance(refused.exception, UsageError)
        why = (
            f"can't use cache directory {tmp_path / path}: {cause}; choose another with --cache-dir"
        )
        assert str(refused.exception) == why


def test_what_cannot_be_verified_says_why_and_a_pull_mends_it(
    run: Run, model: Path, tmp_path: Path
) -> None:
    run("pull", "team/m:v1")
    (stored,) = (tmp_path / "xdg/p2pcache/manifests").iterdir()
    stored.write_bytes(b"{}")  # by hand
    for command in ("verify", "show"):
        refused = run(command, "team/m:v1", "--origin", "")
        assert isinstance(refused.exception, NotFound)
        assert "its manifest is damaged; `p2pcache pull team/m:v1`" in str(refused.exception)
    assert run("pull", "team/m:v1").exit_code == 0
    assert run("verify", "team/m:v1").exit_code == 0
    run("evict", "team/m:v1")
    assert "team/m:v1 was evicted; `p2pcache pull" in str(run("verify", "team/m:v1").exception)


@needs_root
def test_a_cache_of_another_user_is_left_alone(run: Run, model: Path, tmp_path: Path) -> None:
    """Its owner can neither link nor remove what root would leave in it."""
    run("pull", "team/m:v1")
    cache = tmp_path / "xdg/p2pcache"
    give_away(cache)
    commands: list[list[object]] = [["rm", "team/m:v1"], ["ls"], ["prune"], *_writers(model)]
    _all_refused(run, cache, commands)
    (cache / RECORDS).unlink()  # as the runbook says, if they are damaged
    _all_refused(run, cache, commands)


@needs_root
def test_a_cache_of_another_user_without_bytes_is_left_alone(
    run: Run, model: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "xdg/p2pcache"
    cache.mkdir(parents=True)
    (cache / RECORDS).touch()
    give_away(cache)
    _all_refused(run, cache, _writers(model))
    assert [path.name for path in cache.iterdir()] == [RECORDS]


@needs_root
def test_an_empty_directory_of_another_user_becomes_a_cache(
    run: Run, model: Path, tmp_path: Path
) -> None:
    """Volumes of pods are made by another user than the one who pulls."""
    cache = tmp_path / "xdg/p2pcache"
    cache.mkdir(parents=True)
    give_away(cache)
    assert run("pull", "team/m:v1").exit_code == 0


def _writers(model: Path) -> list[list[object]]:
    """Commands that make a cache, or a folder in one."""
    settings = model.parent / "settings.toml"
    settings.write_text(f'[sources.lake]\nurl = "{model.parent.as_uri()}"\n')
    return [
        ["pull", "team/m:v1"],
        ["import", model.as_uri(), "a/m:v1", "--config", settings],
        ["import", "none.torrent", "a/m:v1"],
    ]


def _all_refused(run: Run, cache: Path, commands: list[list[object]]) -> None:
    for command in commands:
        refused = run(*command)
        assert isinstance(refused.exception, NotAllowed)
        assert "is 4321's" in str(refused.exception)
        assert "run this as 4321" in str(refused.exception)
    assert not [path for path in cache.rglob("*") if path.lstat().st_uid != 4321]


def test_without_an_agent_an_absent_cache_is_an_empty_one(run: Run) -> None:
    assert run("ls").stdout.split() == ["NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"]
    assert json.loads(run("ls", "--json").stdout) == {"schema": 1, "models": []}
    assert run("prune").stdout == "0 B freed\n"
    for command in ("show", "rm", "verify"):
        assert isinstance(run(command, "llama").exception, NotFound)
