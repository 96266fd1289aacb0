"""Commands without a daemon, for real: a directory as storage, a cache of the user's own."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.daemons import wait_until
from p2pcache.cli.standalone.local_cache import LOCK_FILE
from p2pcache.core.format.tag_record import TagRecord
from p2pcache.errors import IntegrityError, NotFound, OriginUnavailable, UsageError
from p2pcache.ids import Ref
from p2pcache.io.origins.repo import OriginRepo
from tests.cli.conftest import Run


@pytest.fixture
def model(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pushed model; the settings point at its storage."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(os.urandom(3_000_000))
    (folder / "sub" / "config.json").write_text("{}")
    (tmp_path / "origin").mkdir()
    monkeypatch.setenv("P2PCACHE_ORIGIN", f"file://{tmp_path}/origin")
    assert run("push", folder, "team/m:v1").exit_code == 0
    yield folder
    make_removable(tmp_path / "xdg")


def make_removable(folder: Path) -> None:
    """Read-only trees of models: nobody but root could remove them."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def same(left: Path, right: Path) -> bool:
    return all(
        (left / name).read_bytes() == (right / name).read_bytes()
        for name in ("weights.bin", "sub/config.json")
    )


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


def test_verify_finds_a_changed_byte(run: Run, model: Path) -> None:
    weights = Path(run("pull", "team/m:v1").stdout.strip()) / "weights.bin"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"x" * 10)
    result = run("verify", "team/m:v1")
    assert isinstance(result.exception, IntegrityError)
    assert "of 13 chunks 1 missing" in str(result.exception)
    healed = run("pull", "team/m:v1")
    assert healed.exit_code == 0
    assert same(model, Path(healed.stdout.strip()))


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


def test_a_killed_pull_leaves_nothing_outside_its_cache(run: Run, model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="p2pc-") as short:
        folder = Path(short)
        elsewhere, cache = folder / "tmp", folder / "cache"
        elsewhere.mkdir()
        environ = os.environ | {"TMPDIR": str(elsewhere), "P2PCACHE_ORIGIN_BYTES_PER_S": "1MiB"}
        command = [sys.executable, "-m", "p2pcache.cli.main", "pull", "team/m:v1"]
        command += ["--cache-dir", str(cache)]
        with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as process:
            wait_until((cache / "command/agent.sock").exists, 60)
            process.kill()
        assert list(elsewhere.iterdir()) == []
        again = run("pull", "team/m:v1", "--cache-dir", cache)
        assert again.exit_code == 0, again.exception
        assert same(model, Path(again.stdout.strip()))
        assert not (cache / "command").exists()
        make_removable(cache)


def test_a_pull_works_in_a_cache_too_deep_for_a_socket(
    run: Run, model: Path, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 100)
    result = run("pull", "team/m:v1", "--cache-dir", deep)
    assert result.exit_code == 0, result.exception
    assert not (deep / "command").exists()


def test_a_cache_that_an_agent_holds_is_refused(run: Run, model: Path, tmp_path: Path) -> None:
    run("pull", "team/m:v1")
    descriptor = os.open(tmp_path / "xdg/p2pcache/lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert isinstance(run("ls").exception, UsageError)
    finally:
        os.close(descriptor)


def test_without_an_agent_an_absent_cache_is_an_empty_one(run: Run) -> None:
    assert run("ls").stdout.split() == ["NAME", "TAG", "DIGEST", "SIZE", "STATE", "USED"]
    assert json.loads(run("ls", "--json").stdout) == {"schema": 1, "models": []}
    assert run("prune").stdout == "0 B freed\n"
    for command in ("show", "rm", "verify"):
        assert isinstance(run(command, "llama").exception, NotFound)
