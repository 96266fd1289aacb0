"""What `p2pcache doctor` measures: every fact on a thread of its own, with a deadline."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from p2pcache import __version__
from p2pcache.agent.settings import AgentSettings
from p2pcache.core import doctor as think
from p2pcache.core.doctor import Fact, Trouble
from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io import host, probe
from p2pcache.io.auth import is_loopback, read_cluster_key
from p2pcache.io.client import read_token
from p2pcache.io.config import redacted
from p2pcache.io.errand import Errand
from p2pcache.io.tls import open_tls
from p2pcache.io.web import format_address, parse_listen

T = TypeVar("T")

LOCAL_S = 3.0  # looking at this machine is quick, unless a network mount is dead
REMOTE_S = 12.0  # two calls of `probe.CALL_S`
DISK_S = 12.0  # twice `host.DISK_S`, and a slow drive that makes its last piece durable
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


class Node(NamedTuple):
    """What is examined: an agent's settings, and the address of its API."""

    settings: AgentSettings
    address: str
    named: bool  # the operator named the address, so an agent must be there
    token_file: str


class Asked(NamedTuple):
    """A fact about somebody else, and what else came of asking."""

    fact: Fact
    ahead_s: float | None = None  # our clock's lead on theirs
    origin: str = ""  # the storage that they use
    pid: int | None = None
    there: bool = False  # an agent answers


def examine(node: Node) -> dict[str, Fact]:
    """Everything that can be measured of a node, in bounded time."""
    settings, cache = node.settings, Path(node.settings.cache_dir).absolute()
    tracker = _errand(lambda: _tracker(settings), f"tracker {settings.tracker}", REMOTE_S)
    agent = _errand(lambda: _agent(node), f"the agent at {node.address}", REMOTE_S)
    local: dict[str, Errand[Fact]] = {
        "key": _errand(lambda: _key(settings), "the cluster key"),
        "space": _errand(lambda: _space(cache, settings.min_free_bytes), f"{cache}"),
        "disk": _errand(lambda: _disk(cache), f"the disk of {cache}", DISK_S),
        "network": _errand(lambda: _network(settings), "the network"),
        "kernel": _errand(lambda: think.Kernel(host.tcp_buffers()), "the kernel's settings"),
    }
    if settings.tls_cert or settings.tls_key or settings.tls_ca:
        local["certificate"] = _errand(lambda: _certificate(settings), "the certificate")
    hub, api = _asked(tracker), _asked(agent)
    local["cache"] = _errand(lambda: _cache(cache, agent_runs=api.there), f"{cache}")
    local["files"] = _errand(lambda: _files(api.pid), "the limit of open files")
    url = settings.origin or hub.origin or api.origin
    store = _asked(_errand(lambda: _origin(url), f"origin {redacted(url)}", REMOTE_S))
    leads = {"tracker": hub.ahead_s, "origin": store.ahead_s}
    known = {name: lead for name, lead in leads.items() if lead is not None}
    return {
        **{name: _fact(errand) for name, errand in local.items()},
        "tracker": hub.fact, "origin": store.fact, "agent": api.fact,
        "clock": think.Clock(known, host.clock_synchronised()),
    }  # fmt: skip


def trouble(error: Exception) -> Trouble:
    """Why a fact is missing."""
    if isinstance(error, P2PCacheError):
        return Trouble(error.exit_code, " ".join(str(error).split()))
    return Trouble(1, f"this is a bug: {type(error).__name__}: {error}; please report it")


def _errand(work: Callable[[], T], what: str, limit_s: float = LOCAL_S) -> Errand[T]:
    return Errand(work, limit_s=limit_s, what=what)


def _fact(errand: Errand[Fact]) -> Fact:
    try:
        return errand.result()
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
        return trouble(error)


def _asked(errand: Errand[Asked]) -> Asked:
    try:
        return errand.result()
    except Exception as error:  # noqa: BLE001 - one check that fails must not hide the others
        return Asked(trouble(error))


# -- others ----------------------------------------------------------------------------------------


def _tracker(settings: AgentSettings) -> Asked:
    if not settings.tracker:
        return Asked(think.Tracker("", 0.0))
    secret = read_cluster_key(settings.cluster_key_file)
    answer = probe.tracker(settings.tracker, secret, open_tls(settings, "agent"))
    fact = think.Tracker(redacted(settings.tracker), answer.seconds)
    return Asked(fact, ahead_s=answer.ahead_s, origin=answer.origin)


def _origin(url: str) -> Asked:
    if not url:
        return Asked(think.Origin("", 0.0, empty=True))
    answer = probe.origin(url)
    fact = think.Origin(redacted(url), answer.seconds, answer.empty)
    return Asked(fact, ahead_s=answer.ahead_s)


def _agent(node: Node) -> Asked:
    path = node.address.removeprefix("unix://")
    if not node.named and path != node.address and not host.is_socket(Path(path)):
        return Asked(think.Agent(node.address, there=False, version="", ours="", reasons=()))
    status, pid = probe.agent(node.address, read_token(node.token_file))
    reasons = status.get("reasons")
    origin = status.get("origin")
    fact = think.Agent(
        node.address, there=True, version=str(status.get("version", "?")), ours=__version__,
        reasons=tuple(str(r) for r in reasons) if isinstance(reasons, list) else (),
    )  # fmt: skip
    url = origin.get("url") if isinstance(origin, dict) else ""
    return Asked(fact, origin=str(url or ""), pid=pid, there=True)


# -- this machine ----------------------------------------------------------------------------------


def _key(settings: AgentSettings) -> Fact:
    listen = parse_listen(settings.listen)[0]
    fact = think.Key(
        settings.cluster_key_file, settings.listen, is_loopback(listen), settings.insecure,
        bool(settings.tls_cert),
    )  # fmt: skip
    if not fact.path:
        return fact
    if not os.access(fact.path, os.R_OK) and Path(fact.path).exists():
        raise NotAllowed(f"not allowed to read {fact.path}; run as root or the agent's user")
    read_cluster_key(fact.path)
    info = Path(fact.path).stat()
    uid = host.owner(Path(settings.cache_dir))  # the user that the agent runs as
    blind = "" if uid is None or host.can_read(uid, info) else host.user_name(uid)
    return fact._replace(mode=stat.S_IMODE(info.st_mode), blind=blind)


def _certificate(settings: AgentSettings) -> Fact:
    tls = open_tls(settings, "agent")
    assert tls is not None, "a file is named"
    return think.Certificate(str(tls.member), tuple(tls.warnings()))


def _cache(cache: Path, *, agent_runs: bool) -> Fact:
    found = host.folder(cache)
    return think.Cache(
        str(cache), found.exists, found.mode, host.user_name(found.uid), found.writable,
        agent_runs, found.closed,
    )  # fmt: skip


def _space(cache: Path, kept: int) -> Fact:
    return think.Space(str(cache), *host.space(host.folder(cache).nearest), kept)


def _disk(cache: Path) -> Fact:
    found = host.folder(cache)
    nearest = found.nearest
    if not found.writable:
        return think.Unmeasured(f"{nearest} isn't ours to write", "run as root or the agent's user")
    write, read = host.disk_speed(nearest)
    return think.Disk(str(nearest), host.file_system(nearest), write, read)


def _files(pid: int | None) -> Fact:
    if pid is not None:
        return think.Files(host.file_limit(pid), "the agent's")
    return think.Files(host.file_limit(), "this command's; the agent's unit has its own")


def _network(settings: AgentSettings) -> Fact:
    name, port = parse_listen(settings.advertise or settings.listen)
    if name in WILDCARDS:
        name = host.address_for_peers(settings.tracker)
        if not name:
            raise UsageError(
                "no address that others can dial; set advertise, or bring up the network"
            )
    address = host.address_of(name)
    interface = host.interface_of(address) or host.Interface("", 0, 0, up=False)
    hub = urlsplit(settings.tracker).hostname or ""
    source = host.source_towards(hub) if hub and not is_loopback(host.address_of(hub)) else ""
    return think.Network(
        interface.name, format_address(name, port), address, is_loopback(address), interface.speed_mbit,
        interface.mtu, interface.up, "" if is_loopback(source) else source,
    )  # fmt: skip
