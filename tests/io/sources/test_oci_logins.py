"""Logins at registries, as docker and podman keep them."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.sources.oci.logins import Login, find_login


def auth(text: str) -> dict[str, str]:
    return {"auth": base64.b64encode(text.encode()).decode()}


def env_of(tmp: Path, name: str = ".docker/config.json", **content: Any) -> dict[str, str]:
    path = tmp / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return {"HOME": str(tmp), "XDG_RUNTIME_DIR": str(tmp / "run")}


def test_no_file_is_nobody(tmp_path: Path) -> None:
    assert (
        find_login("reg.example", "a/b", {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/none"})
        is None
    )


@pytest.mark.parametrize(
    ("registry", "repository", "user"),
    [
        ("reg.example", "acme/tiny", "acme"), ("reg.example", "acme/tiny/deep", "acme"),
        ("reg.example", "acme2/tiny", "host"), ("reg.example", "other", "host"),
        ("reg.example:5000", "acme/tiny", "port"), ("docker.io", "library/x", "hub"), ("none.example", "x", None),
        ("old.example", "x", "old"),
    ],
)  # fmt: skip
def test_the_login_for_the_smallest_part_counts(
    tmp_path: Path, registry: str, repository: str, user: str | None
) -> None:
    env = env_of(tmp_path, auths={
        "reg.example": auth("host:pw"), "reg.example/acme": auth("acme:p:w"), "reg.example:5000": auth("port:pw"),
        "https://index.docker.io/v1/": auth("hub:pw"), "https://old.example/v2": {"username": "old", "password": "pw"},
    })  # fmt: skip
    found = find_login(registry, repository, env)
    assert (found and found.user) == user
    if user == "acme":
        assert found == Login("acme", "p:w")


def test_containers_own_files_come_first(tmp_path: Path) -> None:
    env = env_of(tmp_path, auths={"r": auth("docker:pw")})
    env_of(tmp_path, ".config/containers/auth.json", auths={"r": auth("config:pw")})
    assert find_login("r", "x", env) == Login("config", "pw")
    env_of(tmp_path, "run/containers/auth.json", auths={"r": auth("run:pw")})
    assert find_login("r", "x", env) == Login("run", "pw")
    env_of(tmp_path, "mine.json", auths={"r": auth("mine:pw")})
    chosen = env | {"REGISTRY_AUTH_FILE": str(tmp_path / "mine.json")}
    assert find_login("r", "x", chosen) == Login("mine", "pw")


def test_a_helper_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "bin/docker-credential-kept"
    helper.parent.mkdir()
    helper.write_text(
        '#!/bin/sh\nread host\n[ "$host" = no.example ] && exit 1\n'
        'echo "{\\"ServerURL\\":\\"$host\\",\\"Username\\":\\"$1\\",\\"Secret\\":\\"pw\\"}"\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    env = env_of(tmp_path, credsStore="kept", credHelpers={"gone.example": "notinstalled"})
    assert find_login("reg.example", "x", env) == Login("get", "pw")
    assert find_login("no.example", "x", env) is None
    assert find_login("gone.example", "x", env) is None
    with pytest.raises(NotAllowed, match="helper"):
        find_login("reg.example", "x", env_of(tmp_path, credsStore="../../bin/sh"))


def test_a_damaged_file_is_told_without_its_content(tmp_path: Path) -> None:
    env = env_of(tmp_path, auths={"r": {"auth": "c2VjcmV0!"}})
    with pytest.raises(NotAllowed, match="damaged") as caught:
        find_login("r", "x", env)
    assert "c2Vj" not in str(caught.value)
    (tmp_path / ".docker/config.json").write_text('{"auths": "sesame"')
    with pytest.raises(NotAllowed, match="JSON") as caught:
        find_login("r", "x", env)
    assert "sesame" not in str(caught.value)
