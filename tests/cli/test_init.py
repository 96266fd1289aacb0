"""`p2pcache-init`, as KServe calls it: a source and a directory, exit codes of `pull`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.kit.cluster import clean_environ
from loadtest.kit.models import check_tree, make_model
from p2pcache.cli import init


def call(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """As its own process, without a daemon."""
    environ = {**clean_environ(home), "P2PCACHE_ORIGIN": f"file://{home}/origin"}
    command = [sys.executable, "-m", "p2pcache.cli.init", *args]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_a_model_lands_in_the_directory(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", 2 << 20, shards=2)
    (tmp_path / "origin").mkdir()
    push = [sys.executable, "-m", "p2pcache.cli.main", "push", str(model), "team/m:v1"]
    subprocess.run([*push, "--origin", f"file://{tmp_path}/origin"], check=True,
                   env=clean_environ(tmp_path), capture_output=True)  # fmt: skip
    target = tmp_path / "mnt" / "models"
    target.mkdir(parents=True)
    done = call(tmp_path, "p2pcache://team/m:v1", str(target))
    assert (done.returncode, done.stdout.strip()) == (0, str(target)), done.stderr
    check_tree(target, model)
    assert os.access(target / "config.json", os.W_OK), "the caller's own copy"
    missing = call(tmp_path, "p2pcache://team/other:v1", str(tmp_path / "other"))
    assert missing.returncode == 3
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["p2pcache://m"],
        ["p2pcache://m", "/a", "/b"],
        ["s3://bucket/m", "/mnt/models"],
        ["p2pcache://", "/mnt/models"],
        ["p2pcache://../etc", "/mnt/models"],
        ["p2pcache://--origin=s3://x", "/mnt/models"],
    ],
)
def test_bad_arguments_are_usage_errors(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main(args) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "usage: p2pcache-init p2pcache://" in said[0]
