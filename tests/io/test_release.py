"""Which commit a program is of: written down at build time, asked of git in a checkout, else unknown."""

import subprocess
from pathlib import Path

import pytest

from p2pcache.io.release import NOTE, UNKNOWN, commit_of, package_version


def git(where: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args],
        cwd=where, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "p2pcache").mkdir(parents=True)
    (root / "p2pcache/a.py").write_text("1\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    git(root, "tag", "v1")
    return root


def test_a_checkout_asks_git(checkout: Path) -> None:
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


def test_a_changed_checkout_says_so(checkout: Path) -> None:
    (checkout / "p2pcache/a.py").write_text("2\n")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD") + "-dirty"


def test_the_note_of_a_build_counts_before_git(checkout: Path) -> None:
    (checkout / NOTE).write_text("abc\n")
    assert commit_of(checkout) == "abc"


def test_a_program_inside_of_another_checkout_is_not_of_its_commit(checkout: Path) -> None:
    """As site-packages of a .venv that lies in the checkout of something else."""
    inside = checkout / ".venv/site-packages"
    (inside / "p2pcache").mkdir(parents=True)
    assert commit_of(inside) == UNKNOWN


def test_git_of_another_repository_in_the_environment(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a hook of git, which runs with GIT_DIR set."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    right = commit_of(checkout)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert commit_of(checkout) == right


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout) == UNKNOWN


def test_a_checkout_that_git_cannot_read(checkout: Path) -> None:
    (checkout / ".git/HEAD").write_text("nonsense\n")
    assert commit_of(checkout) == UNKNOWN


def test_a_package_that_is_missing() -> None:
    assert package_version("no-such-package-of-ours") == "not installed"
