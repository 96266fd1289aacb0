"""What `doctor` measures of a node. Each fact is measured on a thread of its own, with a deadline, and judged there."""

import os
import stat
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from p2pcache import __version__
from p2pcache.agent.node.location import advertised, check
from p2pcache.agent.settings import EXAMINED, AgentSettings
from p2pcache.agent.tracker_route import Target
from p2pcache.core.host import diagnosis
from p2pcache.core.host.diagnosis import Finding, Tracker, Trouble
from p2pcache.core.protocol.address import join, tracker_urls
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.units import format_bytes
from p2pcache.errors import NoSpace, NotAllowed, P2PCacheError, UsageError
from p2pcache.io.config import redacted
from p2pcache.io.deadline_thread import DeadlineThread
from p2pcache.io.disk.cache_dir import user_name
from p2pcache.io.disk.disk import (
    FEW_INODES,
    MAKE_INODES,
    MAKE_WRITABLE,
    free_inodes,
    is_read_only,
)
from p2pcache.io.host import host_facts, probe
from p2pcache.io.http.client import read_token
from p2pcache.io.http.own_addresses import is_wildcard
from p2pcache.io.http.server import parse_listen
from p2pcache.io.security.cluster_key import ASK_FOR_RIGHTS, is_loopback, read_cluster_key
from p2pcache.io.security.tls import Tls, open_tls

T = TypeVar("T")

LOCAL_S = 3.0  # looking at this machine is quick, unless a network mount is dead
REMOTE_S = 12.0  # two calls of `probe.CALL_S`
# The key beside all names, then all trackers at once, then the active one that they name.
ALL_S = LOCAL_S + 2 * REMOTE_S + 1
DISK_S = 12.0  # twice `host_facts.DISK_S`, and the sync of a slow drive


class Node(NamedTuple):
    """The node to examine: its agent's settings, and the address of the agent's API."""

    settings: AgentSettings
    address: str
    named: bool  # the operator gave the address, so an agent must answer there
    token_file: str


class SeenTrackers(NamedTuple):
    """The findings about all trackers, and what the first that answers says of itself."""

    findings: list[Finding]
    told: probe.Told = probe.Told()


class _Seen(NamedTuple):
    """One tracker."""

    fact: Tracker | Trouble
    told: probe.Told


class SeenAgent(NamedTuple):
    """The finding about an agent, and what else its answer says."""

    finding: Finding
    origin: str = ""  # the storage that it uses
    pid: int | None = None
    running: bool = False


def examine(node: Node) -> list[Finding]:
    """Examine a node, in bounded time; what can't be measured is a finding, too."""
    settings, cache = node.settings, Path(node.settings.cache_dir).absolute()
    agent = _errand(lambda: _agent(node), f"the agent at {node.address}", REMOTE_S)
    trackers = _errand(lambda: _trackers(settings), f"tracker {settings.tracker}", ALL_S)
    errands: dict[str, DeadlineThread[Finding]] = {
        "key": _errand(lambda: _key(settings), "the cluster key"),
        "space": _errand(lambda: _space(cache, settings.min_free_bytes), f"{cache}"),
        "disk": _errand(lambda: _disk(cache), f"the disk of {cache}", DISK_S),
        "network": _errand(lambda: _network(settings), "the network"),
        "kernel": _errand(_kernel, "the kernel's settings"),
    }
    if settings.tls_cert or settings.tls_key or settings.tls_ca:
        errands["certificate"] = _errand(lambda: _certificate(settings), "the certificate")
    url = settings.origin or _announced(trackers, agent)
    errands["origin"] = _errand(lambda: _origin(url), f"origin {redacted(url)}", REMOTE_S)
    clock = _errand(lambda: probe.origin_clock(url), "the origin's clock", REMOTE_S)
    seen_agent, seen = _seen_agent(agent), _seen_trackers(trackers)
    errands["cache"] = _errand(lambda: _cache(cache, agent_runs=seen_agent.running), f"{cache}")
    errands["files"] = _errand(lambda: _files(seen_agent.pid), "the limit of open files")
    leads = {"tracker": seen.told.ahead_s, "origin": _result_or(clock, lambda _: None)}
    known = {name: lead for name, lead in leads.items() if lead is not None}
    synchronised = host_facts.clock_synchronised()
    return diagnosis.in_order([
        *(_result_or(one, partial(diagnosis.failed, name)) for name, one in errands.items()),
        *seen.findings,
        seen_agent.finding,
        diagnosis.clock(known, synchronised=synchronised),
    ])  # fmt: skip


def _announced(trackers: DeadlineThread[SeenTrackers], agent: DeadlineThread[SeenAgent]) -> str:
    return _seen_trackers(trackers).told.origin or _seen_agent(agent).origin


def _seen_trackers(trackers: DeadlineThread[SeenTrackers]) -> SeenTrackers:
    return _result_or(trackers, lambda why: SeenTrackers([diagnosis.failed("tracker", why)]))


def _seen_agent(agent: DeadlineThread[SeenAgent]) -> SeenAgent:
    return _result_or(agent, lambda why: SeenAgent(diagnosis.failed("agent", why)))


def settings_of_agent(address: str, token_file: str) -> dict[str, Any]:
    """What a running agent was started with, of that which is examined; empty: none runs, or it doesn't tell us."""
    if not address.startswith("unix://") or not host_facts.is_socket(Path(address[7:])):
        return {}
    try:
        told = probe.agent(address, read_token(token_file))[0].get("settings")
    except P2PCacheError:
        return {}
    if not isinstance(told, dict):
        return {}
    known = AgentSettings()
    return {
        name: told[name]
        for name in EXAMINED
        if name in told and type(told[name]) is type(getattr(known, name))
    }


def trouble(error: Exception) -> Trouble:
    """Return why a fact is missing, from what its measurement raised."""
    if isinstance(error, P2PCacheError):
        return Trouble(error.exit_code, " ".join(str(error).split()))
    return Trouble(1, f"this is a bug: {type(error).__name__}: {error}; please report it")


def _errand(work: Callable[[], T], what: str, limit_s: float = LOCAL_S) -> DeadlineThread[T]:
    return DeadlineThread(work, limit_s=limit_s, what=what)


def _result_or(errand: DeadlineThread[T], otherwise: Callable[[Trouble], T]) -> T:
    """Return the result of an errand, or `otherwise(why)`: one that fails must not hide the others."""
    try:
        return errand.result()
    except Exception as error:  # noqa: BLE001 - each becomes a finding
        return otherwise(trouble(error))


# -- the other daemons, and the origin ------------------------------------------------------------


def _trackers(settings: AgentSettings) -> SeenTrackers:
    """Each tracker of the settings; where none of them is active, the one that a standby calls so besides."""
    if not settings.tracker:
        return SeenTrackers(diagnosis.tracker_lines({}))
    urls = tracker_urls(settings.tracker)
    if not urls:
        raise UsageError(f"no URL of a tracker: {settings.tracker!r}")
    tls = open_tls(settings, "agent")
    reading: DeadlineThread[Secret | Trouble] = _errand(
        lambda: _read_key(settings.cluster_key_file), "the cluster key"
    )
    names = [(url, _errand(partial(probe.addresses_of, url), url)) for url in urls]
    key = _result_or(reading, lambda why: why)

    def look(targets: Iterable[Target]) -> dict[str, _Seen]:
        errands = {
            str(one): _errand(partial(_look, one, key, tls), f"tracker {one}", REMOTE_S)
            for one in targets
        }
        return {
            name: _result_or(errand, lambda why: _Seen(why, probe.Told()))
            for name, errand in errands.items()
        }

    seen = look(
        Target(url, address) for url, name in names for address in _result_or(name, lambda _: [""])
    )
    found = {name: one.fact for name, one in seen.items()}
    named = diagnosis.named_active(found)
    if named and named not in urls and not diagnosis.has_active(found):
        seen |= look([Target(named)])
    told = (one.told for one in seen.values())
    said = next((t for t in told if t != probe.Told()), probe.Told())
    if isinstance(key, Trouble):
        return SeenTrackers([diagnosis.failed("tracker", key)], said)
    lines = diagnosis.tracker_lines({name: one.fact for name, one in seen.items()})
    return SeenTrackers(lines, said)


def _look(target: Target, key: Secret | Trouble, tls: Tls | None) -> _Seen:
    """Look at one tracker: what it says, and whether it takes us."""
    told = probe.ask(target.url, tls, target.address)
    if isinstance(key, Trouble):
        return _Seen(key, told)
    try:
        seconds = probe.join(target.url, key, tls, target.address)
    except P2PCacheError as error:
        return _Seen(trouble(error), told)
    return _Seen(Tracker(str(target), seconds, told.role, told.active), told)


def _origin(url: str) -> Finding:
    if not url:
        return diagnosis.no_origin()
    seconds, empty = probe.list_origin(url)
    return diagnosis.origin(redacted(url), seconds, empty=empty)


def _agent(node: Node) -> SeenAgent:
    path = node.address.removeprefix("unix://")
    if not node.named and path != node.address and not host_facts.is_socket(Path(path)):
        return SeenAgent(diagnosis.no_agent(node.address))
    token = read_token(node.token_file)
    status, pid = probe.agent(node.address, token)
    origin = status.get("origin")
    finding = diagnosis.agent(
        node.address, str(status.get("version", "?")), ours=__version__,
        reasons=_texts(status.get("reasons")), warnings=_texts(status.get("warnings")),
        differs=_differs(node.settings, status),
        unreached=probe.unreached(node.address, token, str(status.get("node"))),
    )  # fmt: skip
    url = origin.get("url") if isinstance(origin, dict) else ""
    return SeenAgent(finding, str(url or ""), pid, running=True)


def _texts(told: object) -> list[str]:
    return [str(text) for text in told] if isinstance(told, list) else []


def _differs(settings: AgentSettings, status: dict[str, Any]) -> tuple[str, ...]:
    """Return the settings of the running agent that differ from those that are examined."""
    ours = {
        ("cache", "dir"): (str(Path(settings.cache_dir).absolute()),),
        ("tracker", "url"): tracker_urls(settings.tracker) or ("",),
    }
    found = []
    for (part, key), values in ours.items():
        of_agent = status.get(part)
        theirs = of_agent.get(key) if isinstance(of_agent, dict) else None
        if isinstance(theirs, str) and theirs not in values:
            found.append(f"{part} {redacted(theirs) or 'none'}")
    return tuple(found)


# -- this machine ----------------------------------------------------------------------------------


def _key(settings: AgentSettings) -> Finding:
    path = settings.cluster_key_file
    if not path:
        return diagnosis.no_key(
            settings.listen, loopback=is_loopback(parse_listen(settings.listen)[0]),
            insecure=settings.insecure, certificate=bool(settings.tls_cert), privileged=_privileged(),
        )  # fmt: skip
    if not os.access(path, os.R_OK) and _is_hidden(Path(path)):
        raise NotAllowed(f"not allowed to read {path}; {ASK_FOR_RIGHTS}")
    _read_key(path)
    info = Path(path).stat()
    uid = host_facts.owner(Path(settings.cache_dir))  # the user that the agent runs as
    blind = "" if uid is None or host_facts.can_read(uid, info) else user_name(uid)
    return diagnosis.key_file(path, stat.S_IMODE(info.st_mode), blind)


def _privileged() -> bool:
    return os.geteuid() == 0


def _is_hidden(path: Path) -> bool:
    """Whether a file is there that we may not read, or may be there."""
    try:
        path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _read_key(path: str) -> Secret:
    """Read the cluster key. A user who isn't root may look in the wrong place: don't advise another key."""
    try:
        return read_cluster_key(path)
    except P2PCacheError as error:
        if _privileged() or ASK_FOR_RIGHTS in str(error) or "chmod" in str(error):
            raise
        what = str(error).partition("; ")[0]
        raise type(error)(f"{what}; {ASK_FOR_RIGHTS}") from None


def _certificate(settings: AgentSettings) -> Finding:
    tls = open_tls(settings, "agent")
    assert tls is not None, "a file is named"
    return diagnosis.certificate(str(tls.member), tls.warnings())


def _cache(cache: Path, *, agent_runs: bool) -> Finding:
    found = host_facts.folder(cache)
    if found.exists and is_read_only(cache):
        raise NotAllowed(f"the disk of {cache} is read-only; {MAKE_WRITABLE}")
    return diagnosis.cache(
        str(cache), exists=found.exists, mode=found.mode, owner=user_name(found.uid),
        writable=found.writable, agent_runs=agent_runs, closed=found.closed,
    )  # fmt: skip


def _space(cache: Path, kept: int) -> Finding:
    nearest = host_facts.folder(cache).nearest
    inodes = free_inodes(nearest)
    if inodes is not None and inodes < FEW_INODES:
        raise NoSpace(f"{inodes} inodes left for {cache}; {MAKE_INODES}")
    return diagnosis.space(str(cache), *host_facts.space(nearest), kept)


def _disk(cache: Path) -> Finding:
    found = host_facts.folder(cache)
    nearest = found.nearest
    if not found.writable:
        return diagnosis.unmeasured("disk", f"{nearest} isn't ours to write", ASK_FOR_RIGHTS)
    free, _ = host_facts.space(nearest)
    if free < host_facts.DISK_ROOM_BYTES:
        return diagnosis.unmeasured(
            "disk", f"{format_bytes(free)} free, too little to measure with", ""
        )
    write, read = host_facts.disk_speed(nearest)
    return diagnosis.disk(str(nearest), host_facts.file_system(nearest), write, read)


def _kernel() -> Finding:
    return diagnosis.kernel(host_facts.tcp_buffers())


def _files(pid: int | None) -> Finding:
    if pid is not None:
        return diagnosis.files(host_facts.file_limit(pid), "the agent's")
    return diagnosis.files(host_facts.file_limit(), "this command's; the agent's unit has its own")


def _network(settings: AgentSettings) -> Finding:
    check(settings)
    name, port = parse_listen(advertised(settings.advertise) or settings.listen)
    if is_wildcard(name):
        name = host_facts.address_for_peers(settings.tracker)
        if not name:
            raise UsageError(
                "no address that others can dial; set advertise, or bring up the network"
            )
    address = host_facts.address_of(name)
    interface = host_facts.interface_of(address) or host_facts.Interface("", 0, 0, up=False)
    tracker = urlsplit(settings.tracker.partition(",")[0]).hostname or ""
    source = (
        host_facts.source_towards(tracker)
        if tracker and not is_loopback(host_facts.address_of(tracker))
        else ""
    )
    return diagnosis.network(
        interface.name, join(name, port), address, loopback=is_loopback(address),
        speed_mbit=interface.speed_mbit, mtu=interface.mtu, up=interface.up,
        source="" if is_loopback(source) else source,
    )  # fmt: skip
