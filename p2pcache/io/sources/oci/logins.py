"""Logins at registries, from where docker, podman, skopeo and ORAS keep them."""

import base64
import binascii
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from p2pcache.errors import NotAllowed
from p2pcache.io import redaction

MAX_FILE_BYTES = 1 << 20  # one with 1,000 logins has some 100 KB
HELPER_S = 10.0  # helpers ask a cloud or a key ring
_HELPER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SCHEME = re.compile(r"^https?://|/v[12]/?$|/$")


class Login(NamedTuple):
    """A user of a registry."""

    user: str
    password: str

    @property
    def basic(self) -> str:
        """As the header `Authorization` has it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Auth(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""


class _File(msgspec.Struct, rename="camel"):
    auths: dict[str, _Auth] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Found(msgspec.Struct, rename="pascal"):
    """What a helper prints."""

    username: str
    secret: str


def find_login(
    registry: str, repository: str, env: Mapping[str, str] | None = None
) -> Login | None:
    """The login for a repository; None: there is none, so it is read as anybody.

    Args:
        registry: its host, with a port if it has one.
        repository: a login may be for a part of the registry.
        env: variables; default: those of the process.

    Raises:
        NotAllowed: a file of logins can't be read.
    """
    env = os.environ if env is None else env
    for path in _files(env):
        found = _in_file(path, registry, repository)
        if found is not None:
            redaction.keep(found.password, found.basic.partition(" ")[2])
            return found
    return None


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    home = Path(env.get("HOME") or Path.home())
    if chosen := env.get("REGISTRY_AUTH_FILE"):
        yield Path(chosen)
    if runtime := env.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    else:
        yield Path(f"/run/containers/{os.getuid()}/auth.json")
    yield Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"
    yield Path(env.get("DOCKER_CONFIG") or home / ".docker") / "config.json"


def _in_file(path: Path, registry: str, repository: str) -> Login | None:
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES)
        known = msgspec.json.decode(data, type=_File)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NotAllowed(f"the logins in {path} can't be read: {error.strerror}") from None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise NotAllowed(
            f"the logins in {path} aren't JSON as docker and podman write it"
        ) from None
    auths = {_host(name): auth for name, auth in known.auths.items()}
    for name in _names(registry, repository):
        if name in known.cred_helpers:
            return _ask_helper(known.cred_helpers[name], name)
        if name in auths and (login := _login(auths[name], path)) is not None:
            return login
    if known.creds_store:
        return _ask_helper(known.creds_store, registry)
    return None


def _names(registry: str, repository: str) -> Iterator[str]:
    """The registry's parts that a login may be for, the smallest first."""
    parts = repository.split("/")
    for end in range(len(parts), 0, -1):
        yield f"{registry}/{'/'.join(parts[:end])}"
    yield registry


def _host(name: str) -> str:
    bare = _SCHEME.sub("", _SCHEME.sub("", name))
    return "docker.io" if bare == "index.docker.io" else bare


def _login(auth: _Auth, path: Path) -> Login | None:
    if not auth.auth:
        return Login(auth.username, auth.password) if auth.username else None
    try:
        user, _, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise NotAllowed(f"a login in {path} is damaged; log in again") from None
    return Login(user, password.rstrip("\0"))


def _ask_helper(name: str, registry: str) -> Login | None:
    """What `docker-credential-NAME` knows; None: nothing, or there is no such program."""
    if not _HELPER.fullmatch(name):
        raise NotAllowed(f"not the name of a helper for logins: {name[:80]!a}")
    try:
        done = subprocess.run(
            [f"docker-credential-{name}", "get"], input=registry.encode(), capture_output=True, timeout=HELPER_S,
            check=False,
        )  # fmt: skip
        found = msgspec.json.decode(done.stdout, type=_Found) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if found is None:
        return None
    if found.username == "<token>":
        raise NotAllowed(
            f"the login for {registry} is an identity token, which isn't understood; log in with a user and password"
        )
    return Login(found.username, found.secret)
