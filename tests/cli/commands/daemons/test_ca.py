from pathlib import Path

import pytest

from p2pcache.errors import Conflict
from tests.cli.conftest import Run


def test_stdout_is_the_paths_alone(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    assert run("ca", "init", folder, "--name", "prod").stdout == f"{folder}/ca.pem\n"
    made = run("ca", "issue", folder, "node-1", "--role", "agent", "--out", tmp_path / "out")
    assert made.stdout == f"{tmp_path}/out/node-1.pem\n{tmp_path}/out/node-1.key\n"
    assert "node-1" in made.stderr
    assert "good until" in made.stderr


def test_existing_files_are_never_overwritten(run: Run, tmp_path: Path) -> None:
    run("ca", "init", tmp_path / "ca")
    before = (tmp_path / "ca/ca.key").read_bytes()
    assert isinstance(run("ca", "init", tmp_path / "ca").exception, Conflict)
    assert (tmp_path / "ca/ca.key").read_bytes() == before


@pytest.mark.parametrize("flags", [[], ["--role", "root"]])
def test_a_certificate_needs_a_role(run: Run, tmp_path: Path, flags: list[str]) -> None:
    run("ca", "init", tmp_path / "ca")
    assert run("ca", "issue", tmp_path / "ca", "node-1", *flags).exit_code == 2
    assert not (tmp_path / "ca/node-1.pem").exists()
