"""The settings of client commands, and the options by which the command line sets them."""

import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import click
import msgspec

from p2pcache.cli.support.options import PATH_TYPES, config_option
from p2pcache.cli.support.setting_options import given
from p2pcache.core.units import format_duration
from p2pcache.errors import TimedOut, UsageError
from p2pcache.io import config


class ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the client commands; the TOML section is `[client]`. "" means not set."""

    agent: str = ""
    """The agent to talk to: unix:///PATH or http://HOST:PORT; default: the local socket, if there is one."""
    tracker: str = ""
    """URL of the tracker, http://HOST:PORT, for a pull that runs its own agent; of several, separated by commas."""
    origin: str = ""
    """URL of the storage (s3://bucket/prefix or file:///dir), for commands that work without a daemon."""
    cache_dir: str = ""
    """Cache of commands that work without a daemon; default: $XDG_CACHE_HOME/p2pcache or ~/.cache/p2pcache."""
    models_dir: str = ""
    """Where this client sees the agent's models directory (a container's mount); printed paths use it."""
    token_file: str = ""
    """File with the token that a remote agent asks for."""
    timeout_s: float = 0.0
    """Give up (exit 9) after so long; 0: never."""
    linger_s: float = 30.0
    """A pull that runs its own agent in a swarm stays for so long at most to hand on what only it has."""
    compile_cache_namespaces: str = ""
    """Namespaces whose compile caches, which are programs, may be restored here, separated by commas; default: none."""
    sigstore_trust_config: str = ""
    """JSON file (ClientTrustConfig) of the Sigstore that signatures without a key are of; default: the public one."""
    identity_token_file: str = ""
    """File with the identity token to sign with; default: SIGSTORE_ID_TOKEN, a CI system's or cloud's, the browser."""


class Loaded(NamedTuple):
    """The settings of a client command, the source of each, and the file that was read."""

    settings: ClientSettings
    sources: dict[str, str]  # by field: "flag", "default", or a text that names variable or file
    file: config.ConfigFile


class PullOptions(NamedTuple):
    """The options of a pull. The names are parameters of `AgentClient.pull`."""

    force_generation: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    background: bool = False
    hold: str = ""
    hold_s: float = 0.0
    hold_pid: int = 0
    url: str = ""


_TABLE = (
    ("agent", "--agent", "ADDRESS", "unix:///PATH or http://HOST:PORT [default: the local one]."),
    ("token_file", "--token-file", "FILE", "Token that a remote agent asks for."),
    ("timeout_s", "--timeout", "DURATION", "Give up (exit 9) after so long, e.g. 90 or 10m."),
    ("origin", "--origin", "URL", "Work without a daemon, from this storage: s3://.. or file:///.."),
    ("tracker", "--tracker", "URL", "Work without a daemon, in this tracker's swarm."),
    ("cache_dir", "--cache-dir", "DIR", "Work without a daemon, in this cache."),
    ("sigstore_trust_config", "--sigstore-trust-config", "FILE",
     "The Sigstore that keyless signatures are of [default: the public one]."),
    ("identity_token_file", "--identity-token-file", "FILE",
     "Token for --keyless [default: SIGSTORE_ID_TOKEN, the CI system's, the browser]."),
    ("linger_s", "--linger", "DURATION",
     "Without a daemon: stay at most so long to serve others [default: 30]."),
)  # fmt: skip
_OPTIONS = {
    name: click.option(
        flag, name, metavar=word, type=PATH_TYPES.get(word), help=text,
        multiple=name in config.LISTS, callback=given if name in config.LISTS else None,
    )
    for name, flag, word, text in _TABLE
}  # fmt: skip
_FLAG_NAMES = {name: flag for name, flag, _, _ in _TABLE}
_ALWAYS = ("agent", "token_file", "timeout_s")


def client_options(*extra: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a client command with the options that name its agent, and with `extra` ones.

    The command gets the settings as `loaded`, and runs under --timeout.

    Args:
        extra: fields of `ClientSettings` that this command takes as options, too.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        names = (*extra, *_ALWAYS)

        @functools.wraps(function)
        def command(*, config: str | None, **values: Any) -> Any:
            loaded = load(config, {name: values.pop(name) for name in names})
            with time_limit(loaded.settings.timeout_s):
                return function(loaded=loaded, **values)

        command = config_option(command)
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return decorate


def load(path: str | None, flags: Mapping[str, Any]) -> Loaded:
    """Read the client's settings.

    Args:
        path: the settings file of --config; None: the usual one, if it exists.
        flags: values of the command line by field name; None: not given.

    Raises:
        UsageError: a value or a key is wrong.
        NotFound: no file at `path`.
    """
    file = config.read_file(config.find_file(path, os.environ))
    settings, sources = config.load(
        ClientSettings, "client", file=file, environ=os.environ, flags=flags, flag_names=_FLAG_NAMES
    )
    return Loaded(settings, sources, file)


def cache_dir(settings: ClientSettings) -> Path:
    """Return the absolute path of the cache that commands without a daemon use.

    Raises:
        UsageError: it is blank, or nobody says where it is: a container's user may have no home directory.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if settings.cache_dir:
        if not settings.cache_dir.strip():
            raise UsageError("cache_dir is blank; name a directory, or leave it out")
        return Path(settings.cache_dir).absolute()
    # The XDG specification says to ignore a relative path there.
    try:
        return (Path(base) if base.startswith("/") else config.home_dir() / ".cache") / "p2pcache"
    except UsageError as error:
        raise UsageError(
            f"{error}; name a directory for the cache with --cache-dir or P2PCACHE_CACHE_DIR"
        ) from None


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` in the main thread when the block takes longer than `seconds`; 0: never.

    An alarm signal does it, so that a blocking call ends, too.
    """
    if not seconds:
        yield
        return

    def expire(_number: int, _frame: FrameType | None) -> None:
        raise TimedOut(
            f"not done after {format_duration(seconds)} (--timeout); run the command again to resume"
        )

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
