"""`p2pcache token`, and the agent that believes what it prints."""

import json
import stat
import time
from pathlib import Path

import pytest

from p2pcache.core.protocol import tokens
from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.security.cluster_key import read_cluster_key
from tests.cli.conftest import Run


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o600)
    return path


def test_stdout_is_the_token_alone(run: Run, key: Path) -> None:
    made = run("token", "create", "--scope", "push", "--namespace", "a", "--namespace", "b",
               "--expires", "2h", "--name", "ci", "--key-file", key)  # fmt: skip
    assert made.exit_code == 0
    (text,) = made.stdout.split()
    signing = tokens.signing_key(read_cluster_key(str(key)))
    token = tokens.verify(signing, text, time.time())
    assert (token.name, token.scope, token.namespaces) == ("ci", "push", ("a", "b"))
    assert token.expires - token.issued == 7200
    assert text not in made.stderr
    assert "0123456789abcdef" not in made.output


def test_the_key_may_come_from_the_environment(run: Run, key: Path) -> None:
    args = ("token", "create", "--scope", "pull", "--namespace", "*")
    for variable in ("P2PCACHE_TOKEN_KEY_FILE", "P2PCACHE_CLUSTER_KEY_FILE"):
        assert run(*args, env={variable: str(key)}).exit_code == 0
    assert isinstance(run(*args).exception, UsageError)


def test_show(run: Run, key: Path, tmp_path: Path) -> None:
    made = run("token", "create", "--scope", "pull", "--namespace", "x", "--namespace", "*",
               "--name", "me", "--key-file", key)  # fmt: skip
    file = tmp_path / "token"
    file.write_text(made.stdout)
    text = run("token", "show", file).stdout
    assert "me may pull in every namespace until" in text
    assert "not checked" in text
    assert "good" in run("token", "show", file, "--key-file", key).stdout
    assert json.loads(run("token", "show", file, "--json").stdout)["namespaces"] == ["*"]
    other = tmp_path / "other"
    other.write_text("x" * 40)
    other.chmod(0o600)
    refused = run("token", "show", file, "--key-file", other)
    assert isinstance(refused.exception, NotAllowed)


@pytest.mark.parametrize(
    "wrong",
    [("--expires", "0"), ("--expires", "400d"), ("--namespace", "../x"), ("--name", "a b"),
     ("--expires", "soon")],
)  # fmt: skip
def test_a_bad_name_namespace_or_life_is_refused(
    run: Run, key: Path, wrong: tuple[str, str]
) -> None:
    result = run(
        "token", "create", "--scope", "pull", "--namespace", "a", "--key-file", key, *wrong
    )
    assert isinstance(result.exception, UsageError)
    assert not result.stdout


def test_a_key_that_others_can_read_is_refused(run: Run, key: Path) -> None:
    key.chmod(stat.S_IMODE(key.stat().st_mode) | 0o004)
    result = run("token", "create", "--scope", "pull", "--namespace", "a", "--key-file", key)
    assert isinstance(result.exception, NotAllowed)
