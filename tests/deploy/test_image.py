"""The Dockerfile: linted, and its build steps run in a clean environment with only what it copies."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import p2pcache
from tests.deploy.kubelet import REPO
from tests.deploy.render import DEPLOY, tool

DOCKERFILE = DEPLOY / "docker" / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, " ".join(rest.split())) for word, _, rest in (x.partition(" ") for x in lines)]


@pytest.mark.parametrize("name", ["Dockerfile", "engine.Dockerfile"])
def test_lint(name: str) -> None:
    file = str(DOCKERFILE.with_name(name))
    done = subprocess.run([tool("hadolint"), "--failure-threshold", "style", file],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_it_ends_as_a_user_without_rights() -> None:
    last_stage = instructions()
    while "FROM" in [word for word, _ in last_stage[1:]]:
        last_stage = last_stage[1:]
    stage = dict(last_stage)
    assert stage["USER"] == "10001:10001"
    assert stage["ENTRYPOINT"] == '["env", "--block-signal=INT,TERM", "p2pcache"]'


def test_the_context_holds_what_is_copied_and_no_secret() -> None:
    ignored = (REPO / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = [rest.split()[:-1] for word, rest in instructions() if word == "COPY"]
    assert {name for names in copied for name in names if not name.startswith(("-", "/"))} == let_in


@pytest.mark.parametrize("name", ["Dockerfile", "engine.Dockerfile"])
def test_the_commit_is_an_argument_of_the_build(name: str) -> None:
    """An argument is in the environment of the stage's RUN steps, where setup.py looks for it."""
    stage = DOCKERFILE.with_name(name).read_text().partition("\nFROM ")[2]
    before, _, _ = stage.partition(
        "pip install" if "pip install" in stage else "install --no-cache-dir"
    )
    assert "\nARG P2PCACHE_COMMIT=\n" in before


def test_the_engines_image_holds_the_same_source() -> None:
    def copies(name: str) -> set[str]:
        lines = DOCKERFILE.with_name(name).read_text().splitlines()
        return {line for line in lines if line.startswith("COPY ") and "--from" not in line}

    assert copies("engine.Dockerfile") == copies("Dockerfile")


@pytest.mark.slow
def test_its_steps_build_a_program_that_runs(tmp_path: Path) -> None:
    """COPY and RUN of the build stage, in a directory and a venv of their own, without the dependencies' download."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    source.mkdir()
    for word, rest in instructions():
        *names, _ = rest.split()
        if word == "COPY" and not names[0].startswith("--"):
            for name in names:
                origin, target = REPO / name, source / name
                if origin.is_dir():
                    shutil.copytree(origin, target, symlinks=True,
                                    ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
                else:
                    shutil.copy(origin, target)
    (run,) = [rest for word, rest in instructions() if word == "RUN"]
    steps = [step.strip() for step in run.split("&&")]
    assert len(steps) == 3
    for step in steps:
        words = step.replace("/opt/p2pcache", str(venv)).replace('"$PACKAGE"', ".").split()
        command = [sys.executable if word == "python" else word for word in words]
        if "install" in command:
            _lend(venv, tmp_path)
            # This environment has the same dependencies already; the registry needn't be asked again.
            command[-1:-1] = ["--no-deps", "--no-build-isolation"]
        done = subprocess.run(command, cwd=source, env=os.environ | {"P2PCACHE_COMMIT": "abc"},
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
    site = _site(venv)
    (site / "lent.pth").write_text(f"{_home()}\n")
    for program, expected in (
        ("p2pcache", f"p2pcache {p2pcache.__version__}"),
        ("p2pcache-init", "usage"),
    ):
        flag = "version" if program == "p2pcache" else "--help"
        done = subprocess.run([str(venv / "bin" / program), flag], cwd=tmp_path,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.stdout.startswith(expected), done.stderr
        assert flag != "version" or "commit:   abc\n" in done.stdout
    assert not (site / "pip").exists()


def _lend(venv: Path, tmp_path: Path) -> None:
    """What pip would have downloaded to build with."""
    lent = tmp_path / "lent"
    lent.mkdir()
    for part in (*_home().glob("setuptools*"), _home() / "_distutils_hack"):
        (lent / part.name).symlink_to(part)
    (_site(venv) / "lent.pth").write_text(f"{lent}\n")


def _site(venv: Path) -> Path:
    return next((venv / "lib").glob("python*/site-packages"))


def _home() -> Path:
    """Where this environment's packages are."""
    return Path(msgspec.__file__).parents[1]
