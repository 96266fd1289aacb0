"""A pull without a daemon: the command runs an agent of its own while the pull lasts."""

import contextlib
import errno
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.standalone.local_cache import cache_lock
from p2pcache.cli.standalone.setting_forms import check_forms
from p2pcache.cli.support.background import patience_said
from p2pcache.cli.support.client_options import Loaded, PullOptions, cache_dir
from p2pcache.cli.support.output import note
from p2pcache.core.protocol.address import join, tracker_urls
from p2pcache.core.units import format_duration
from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable, UsageError
from p2pcache.ids import Ref
from p2pcache.io import config, log
from p2pcache.io.disk.disk import translate
from p2pcache.io.http.client import AgentClient, Events
from p2pcache.io.http.own_addresses import first_address, is_wildcard
from p2pcache.io.security.cluster_key import is_loopback
from p2pcache.io.sources.settings import SourceSettings, read_sources
from p2pcache.tracker.settings import TrackerSettings

if TYPE_CHECKING:
    from p2pcache.io.origins.repo import OriginRepo

# Free ports and a private socket: a real agent of this host must not be disturbed.
_ALONE_LISTEN = "127.0.0.1:0"
_DOORS = [name for name in AgentSettings.__struct_fields__ if name.endswith("_listen")]
_MAX_FOLDER_BYTES = 80  # a socket's path may have 107; its name is longer while it is made
JOIN_S = 5.0  # a live tracker takes a member in well under a second

T = TypeVar("T")

Linger = Callable[[str], None]
"""Called with the model's digest when the pull is done; serves the swarm before the agent leaves."""


@contextmanager
def pull_alone(
    loaded: Loaded, ref: Ref, options: PullOptions, *, quiet: bool
) -> Iterator[tuple[Events, Linger]]:
    """Yield the events of a pull by an agent that lives as long as the block, and its `Linger`.

    Args:
        loaded: the client's settings.
        ref: the model.
        options: of the pull.
        quiet: print no notes.

    Raises:
        UsageError: neither an origin nor a tracker is set.
        P2PCacheError: the agent can't start.
    """
    if os.environ.get("P2PCACHE_DEBUG"):
        log.setup("debug")
    else:  # events and errors say all that the user must know; log lines would tear the bar
        logging.getLogger("p2pcache").addHandler(logging.NullHandler())
    cache = cache_dir(loaded.settings)
    with cache_lock(cache):
        settings = agent_settings(loaded, dict(os.environ))
        if not (settings.tracker or options.include or options.exclude or options.hold):
            from p2pcache.cli.standalone.cached_pull import from_cache

            opened: list[OriginRepo] = []
            waited = f"pulling {ref}: waiting for storage to answer"
            with patience_said(waited, lambda: _trouble(opened), quiet=quiet):
                cached = from_cache(
                    cache, settings.origin, ref, force_generation=options.force_generation,
                    opened=opened.append,
                )  # fmt: skip
            if cached is not None:
                yield cached, _leave
                return
        sources = read_sources(loaded.file, os.environ)
        if not settings.tracker and not options.url:
            from p2pcache.agent.embedded import run_lone

            if not quiet:
                _note_wrong_settings(loaded.file)
            with _ready(run_lone(settings, sources), ref, quiet=quiet) as pulling:
                given = options._asdict()
                del given["url"]
                yield pulling(ref, **given), _leave
            return
        with _ready(_with_socket(settings, sources), ref, quiet=quiet) as socket:
            client = AgentClient(f"unix://{socket}")

            def linger(digest: str) -> None:
                _hand_on(client, digest, loaded.settings.linger_s, quiet=quiet)

            if settings.tracker and not _complete(client, ref):
                _wait_for_tracker(client)
            events = client.pull(str(ref), **options._asdict())
            yield events, linger if settings.tracker and loaded.settings.linger_s else _leave


def _note_wrong_settings(file: config.ConfigFile) -> None:
    """Tell of the first setting with which a daemon wouldn't start: a pull from storage doesn't use all of them."""
    try:
        config.check_sections(file, {"tracker": TrackerSettings})
        check_forms("agent", config.load(AgentSettings, "agent", file=file), but={"origin"})
    except UsageError as error:
        note(
            f"note: {error} (this pull doesn't need it; `p2pcache config check` looks at all settings)"
        )


@contextmanager
def _ready(agent: AbstractContextManager[T], ref: Ref, *, quiet: bool) -> Iterator[T]:
    """Start an embedded agent, and say that we wait: some services hand out credentials slowly."""
    with contextlib.ExitStack() as stack:
        with patience_said(f"pulling {ref}: getting ready", str, quiet=quiet):
            started = stack.enter_context(agent)
        yield started


@contextmanager
def agent_alone(loaded: Loaded) -> Iterator[AgentClient]:
    """Yield an agent that lives as long as the block, for other commands than `pull`.

    Raises:
        UsageError: neither an origin nor a tracker is set.
        P2PCacheError: the agent can't start.
    """
    logging.getLogger("p2pcache").addHandler(logging.NullHandler())
    with cache_lock(cache_dir(loaded.settings)):
        settings = agent_settings(loaded, dict(os.environ))
        with _with_socket(settings, read_sources(loaded.file, os.environ)) as socket:
            client = AgentClient(f"unix://{socket}")
            if settings.tracker:
                _wait_for_tracker(client)
            yield client


def _trouble(opened: "list[OriginRepo]") -> str:
    return str(opened[0].trouble or "") if opened else ""


@contextmanager
def _with_socket(settings: AgentSettings, sources: dict[str, SourceSettings]) -> Iterator[str]:
    """As `run_embedded`, with a socket in a folder of its own."""
    from p2pcache.agent.embedded import run_embedded

    with _private_folder(Path(settings.cache_dir)) as private:
        placed = msgspec.structs.replace(settings, socket=str(private / "agent.sock"))
        with run_embedded(placed, sources) as socket:
            yield socket


@contextmanager
def _private_folder(cache: Path) -> Iterator[Path]:
    """Make the folder of the embedded agent's socket.

    It lies in the cache, so that a killed command leaves nothing elsewhere; we hold the cache's lock, so
    remains of an earlier command may be replaced. Below a path too long for a socket it is a temporary one.
    """
    folder = cache / "command"
    if len(os.fsencode(folder)) > _MAX_FOLDER_BYTES:
        with tempfile.TemporaryDirectory(prefix="p2pcache-") as elsewhere:
            yield Path(elsewhere)
        return
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise translate(error, f"can't make {folder}", cache) from None
        raise NotAllowed(
            f"can't make {folder}: {error.strerror}; choose another --cache-dir"
        ) from None
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # somebody else put a file there
            folder.rmdir()


def _complete(client: AgentClient, ref: Ref) -> bool:
    """Tell whether the model is complete in the cache: then it needs no tracker."""
    return any(
        model.get("complete")
        and (ref.short in model.get("refs", ()) or model["digest"] == ref.digest)
        for model in client.models()
    )


def _wait_for_tracker(client: AgentClient) -> None:
    """Wait until a fresh agent is a member, `JOIN_S` at most; after that the pull says what is wrong."""
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        tracker = client.status().get("tracker", {})
        if tracker.get("connected") or tracker.get("refused"):
            return
        time.sleep(0.02)


def _hand_on(client: AgentClient, digest: str, limit_s: float, *, quiet: bool) -> None:
    """Serve the swarm until others have what only this cache has, `limit_s` at most."""
    if not _known_to_others(client):
        return
    if not quiet:
        limit = format_duration(limit_s)
        note(f"note: staying for {limit} at most to hand on what only this cache has (--linger)")
    with contextlib.suppress(P2PCacheError):  # the pull is done all the same
        client.linger(digest, limit_s)


def _known_to_others(client: AgentClient) -> bool:
    """Tell whether somebody may ask this node; an agent that doesn't say so may be known."""
    try:
        status = client.status()
    except P2PCacheError:
        return True
    # The tracker may be away for just now, and others come back to it as we do.
    return bool(status.get("tracker", {}).get("met") or status.get("peers"))


def _leave(_digest: str) -> None:
    """Leave at once: no other node can ask us for anything."""


def agent_settings(loaded: Loaded, environ: dict[str, str]) -> AgentSettings:
    """Return the settings of the embedded agent, without a socket: the client's, and [agent] where it has none.

    Args:
        loaded: the client's settings.
        environ: the environment.

    Raises:
        UsageError: neither an origin nor a usable tracker is set.
        Unreachable: without a network there is no swarm, and no origin is set.
    """
    own = loaded.settings
    flags: dict[str, Any] = {
        "cache_dir": str(cache_dir(own)), "socket": "", "client_socket": "",
        "origin": own.origin or None, "tracker": own.tracker or None,
        "role": "client",  # it leaves soon: nothing is to be kept on it
        # A daemon's: its doors, their ports, and the labels of its cache.
        **dict.fromkeys(_DOORS, ""), "kubernetes_labels": False,
    }  # fmt: skip
    settings = config.load(
        AgentSettings, "agent", file=loaded.file, environ=environ, flags=flags
    ).settings
    # What is advertised names a daemon's port; ours is any free one.
    configured = settings.listen
    settings = msgspec.structs.replace(settings, listen=_ALONE_LISTEN, advertise="")
    if not settings.origin and not settings.tracker:
        raise UsageError(
            "no agent here, and nowhere to pull from: set P2PCACHE_ORIGIN (or --origin) to the storage, "
            "for example s3://models, or start 'p2pcache agent'"
        )
    if all(_is_local(url) for url in tracker_urls(settings.tracker)):
        return settings
    if not (settings.cluster_key_file or settings.insecure or settings.tls_cert):
        if settings.origin:
            return _alone(settings, "no cluster key or certificate")
        raise UsageError(
            f"joining the swarm of {settings.tracker} needs the cluster key or a certificate: set "
            "P2PCACHE_CLUSTER_KEY_FILE (or P2PCACHE_TLS_CERT, P2PCACHE_TLS_KEY and P2PCACHE_TLS_CA), "
            "or P2PCACHE_ORIGIN to work alone"
        )
    listen = _swarm_listen(configured)
    if why := _no_network(listen, settings.tracker):
        if settings.origin:
            return _alone(settings, why)
        raise Unreachable(
            f"can't join the swarm of {settings.tracker}: {why}; bring up the network, or set "
            "P2PCACHE_ORIGIN to work alone"
        )
    return msgspec.structs.replace(settings, listen=listen)


def _alone(settings: AgentSettings, why: str) -> AgentSettings:
    """The settings without the tracker; says so."""
    note(
        f"note: {why}, so not joining {settings.tracker}: working alone, "
        f"from {config.redacted(settings.origin)}"
    )
    return msgspec.structs.replace(settings, tracker="")


def _swarm_listen(configured: str) -> str:
    """Any free port of the host that is configured for a daemon; of every address if that is on loopback."""
    from p2pcache.io.http.server import parse_listen

    host, _ = parse_listen(configured)
    if is_loopback(host):
        return "0.0.0.0:0"
    return join(host, 0)


def _no_network(listen: str, tracker: str) -> str:
    """Why other nodes can't dial what listens there; "" if they can."""
    from p2pcache.io.host.host_facts import address_for_peers
    from p2pcache.io.http.server import listen_tcp, parse_listen

    host, _ = parse_listen(listen)
    if is_wildcard(host):
        # The first one is at hand; the other one may have to look for the tracker's name, as the agent does later.
        found = first_address() or address_for_peers(tracker)
        return "" if found else "no network address here that others can dial"
    try:
        listen_tcp(listen).close()
    except P2PCacheError:
        return f"the network here has no address {host} (P2PCACHE_LISTEN or [agent] listen)"
    return ""


def _is_local(url: str) -> bool:
    """Tell whether a URL's host is this machine: on loopback no cluster key is needed."""
    return is_loopback(urlsplit(url).hostname or "")
