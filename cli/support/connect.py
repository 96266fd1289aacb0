"""Which agent a client command talks to, and the options that say so."""

import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from p2pcache.agent.settings import DEFAULT_CLIENT_SOCKET, DEFAULT_SOCKET
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.cli.support.options import PLACES, config_option
from p2pcache.core.units import format_duration
from p2pcache.errors import TimedOut, Unreachable, UsageError
from p2pcache.io import config
from p2pcache.io.http.client import AgentClient, read_token

if TYPE_CHECKING:
    from p2pcache.cli.standalone.local_cache import LocalCache

DEFAULT_SOCKETS = (DEFAULT_SOCKET, DEFAULT_CLIENT_SOCKET)
# Who gives one of these on the command line asks for a command without a daemon.
ALONE = ("origin", "cache_dir", "tracker")


class Loaded(NamedTuple):
    """The client's settings, where each came from, and the file for what else is read from it."""

    settings: ClientSettings
    sources: dict[str, str]
    file: config.ConfigFile


class Wish(NamedTuple):
    """What `pull` asks for besides the model; the names are `AgentClient.pull`'s."""

    force_generation: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    background: bool = False


_TABLE = (
    ("agent", "--agent", "ADDRESS", "unix:///PATH or http://HOST:PORT [default: the local one]."),
    ("token_file", "--token-file", "FILE", "Token that a remote agent asks for."),
    ("timeout_s", "--timeout", "DURATION", "Give up (exit 9) after so long, e.g. 90 or 10m."),
    ("origin", "--origin", "URL", "Work without a daemon, from this storage: s3://.. or file:///.."),
    ("tracker", "--tracker", "URL", "Work without a daemon, in this tracker's swarm."),
    ("cache_dir", "--cache-dir", "DIR", "Work without a daemon, in this cache."),
    ("linger_s", "--linger", "DURATION",
     "Without a daemon: stay at most so long to serve others [default: 30]."),
)  # fmt: skip
_OPTIONS = {
    name: click.option(flag, name, metavar=word, type=PLACES.get(word), help=text)
    for name, flag, word, text in _TABLE
}
_FLAG_NAMES = {name: flag for name, flag, _, _ in _TABLE}
_ALWAYS = ("agent", "token_file", "timeout_s")


def client_options(*extra: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the options of a client command; the function gets `loaded`, and the time limit runs."""

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
    """The client's settings."""
    file = config.read_file(config.find_file(path, os.environ))
    settings, sources = config.load(
        ClientSettings, "client", file=file, environ=os.environ, flags=flags, flag_names=_FLAG_NAMES
    )
    return Loaded(settings, sources, file)


def find_agent(loaded: Loaded) -> AgentClient | None:
    """The agent that was named, or the local one; None: there is none, or none is wanted.

    Raises:
        UsageError: --agent beside a flag that means "no daemon", or a bad address.
    """
    settings, sources, _ = loaded
    alone = [f"--{name.replace('_', '-')}" for name in ALONE if sources[name] == "flag"]
    if alone and sources["agent"] == "flag":
        raise UsageError(
            f"{alone[0]} works without a daemon, --agent names one; give one of the two"
        )
    address = "" if alone else settings.agent or local_socket()
    return AgentClient(address, token=read_token(settings.token_file)) if address else None


def need_agent(loaded: Loaded) -> AgentClient:
    """The agent, for commands that mean nothing without one.

    Raises:
        Unreachable: there is none.
    """
    client = find_agent(loaded)
    if client is None:
        raise Unreachable(
            f"no agent here: {DEFAULT_SOCKET} doesn't exist; start one with 'p2pcache agent' or name one with --agent"
        )
    return client


@contextmanager
def cache_or_agent(loaded: Loaded) -> Iterator["AgentClient | LocalCache"]:
    """What answers for a cache: the agent, or the cache directory itself where there is none."""
    client = find_agent(loaded)
    if client is not None:
        yield client
        return
    from p2pcache.cli.standalone.local_cache import open_cache

    with open_cache(cache_dir(loaded.settings), loaded.settings.origin) as own:
        yield own


def cache_dir(settings: ClientSettings) -> Path:
    """The cache of commands that work without a daemon."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path there is to be ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "p2pcache"


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` in the main thread after so long; 0: never. Reaches into blocking calls, too."""
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


def local_socket(first: str = "") -> str:
    """Address of a local agent's socket: the first that we may use, else the first that exists, else "".

    Args:
        first: a path to try before the default ones.
    """
    there = [path for path in (first, *DEFAULT_SOCKETS) if path and _exists(path)]
    usable = [path for path in there if os.access(path, os.W_OK)]
    return f"unix://{(usable or there)[0]}" if there else ""


def _exists(path: str) -> bool:
    try:
        return Path(path).is_socket()
    except PermissionError:  # a directory on the way is closed to us: not our agent
        return False
