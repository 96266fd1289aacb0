"""The diagnosis of `p2pcache doctor`: from measured facts about a node to findings.

Each judge makes one `Finding` of one fact: a level, the measured value and advice. Causes stand before their effects
(`ORDER`), so the first failure is the one to mend, and its code is the command's exit code.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from p2pcache.core.host.node_facts import (
    STANDBY,
    Agent,
    Cache,
    Certificate,
    Clock,
    Disk,
    Fact,
    Files,
    Kernel,
    Key,
    Network,
    Origin,
    Space,
    Tracker,
    Trackers,
    Trouble,
    Unmeasured,
)
from p2pcache.core.host.settings import (
    DISK_WARN_BYTES_PER_S,
    FILES_FAIL,
    FILES_WARN,
    MODEL_BYTES,
    SKEW_FAIL_S,
    SKEW_WARN_S,
    SLOW_LINK_MBIT,
    SPACE_WARN_BYTES,
    TCP_WARN_BYTES,
)
from p2pcache.core.units import format_bytes
from p2pcache.errors import OriginUnavailable

Level = Literal["ok", "warn", "fail"]

ORDER = ("settings", "key", "certificate", "cache", "space", "files", "network", "kernel",
         "clock", "tracker", "origin", "agent", "disk")  # fmt: skip

AWAY_ADVICE = "look at the storage and the way there; pulls ask again, and go on by themselves when it answers"

REMOTE_FS = ("nfs", "cifs", "smb", "ceph", "gluster", "lustre", "9p", "fuse")
MEMORY_FS = ("tmpfs", "ramfs")


class Finding(NamedTuple):
    """One line of the diagnosis."""

    check: str
    level: Level
    measured: str
    advice: str = ""
    code: int = 0  # the exit code of a failure, else 0


def examine(facts: Mapping[str, Fact]) -> list[Finding]:
    """One finding for each fact, and one for each tracker, in `ORDER`; facts come by the name of their check."""
    known = [(name, facts[name]) for name in ORDER if name in facts]
    return [finding for name, fact in known for finding in _judge(name, fact)]


def worst(findings: Iterable[Finding]) -> int:
    """The exit code: that of the first failure, whose repair may repair the others; 0: nothing failed."""
    return next((f.code for f in findings if f.level == "fail"), 0)


def _judge(name: str, fact: Fact) -> list[Finding]:
    if isinstance(fact, Trackers):
        return _trackers(fact)
    if isinstance(fact, Trouble):
        return [_failed(name, fact)]
    if isinstance(fact, Unmeasured):
        return [Finding(name, "warn", f"not measured: {fact.why}", fact.advice)]
    return [_JUDGES[type(fact)](fact)]


def _failed(name: str, fact: Trouble) -> Finding:
    measured, _, advice = fact.text.partition("; ")
    if name == "origin" and fact.code == OriginUnavailable.exit_code:
        advice = advice or AWAY_ADVICE
    return Finding(name, "fail", measured, advice, fact.code)


def _key(fact: Key) -> Finding:
    how = (
        "set cluster_key_file to the cluster's key, the same on every node (docs/trust.md)"
        if fact.privileged
        else "this user may not see the agent's settings: run this as root or as a member of group p2pcache"
    )
    if fact.blind:
        advice = f"run: chgrp {fact.blind} {fact.path} && chmod 640 {fact.path}"
        return Finding("key", "fail", f"user {fact.blind} can't read {fact.path}", advice, 4)
    if fact.path:
        return Finding("key", "ok", f"{fact.path}, mode {fact.mode:04o}")
    if fact.certificate:
        return Finding("key", "ok", "none: members show certificates")
    if fact.loopback:
        return Finding("key", "ok", f"none: only this machine reaches {fact.listen}")
    if fact.insecure:
        return Finding("key", "warn", f"none, and {fact.listen} is open to everybody", how)
    return Finding("key", "fail", f"none: the agent refuses to listen on {fact.listen}", how, 2)


def _certificate(fact: Certificate) -> Finding:
    level: Level = "warn" if fact.warnings else "ok"
    return Finding("certificate", level, fact.member, "; ".join(fact.warnings))


def _cache(fact: Cache) -> Finding:
    if not fact.exists:
        measured = f"{fact.path} isn't there yet"
        if fact.writable:
            return Finding("cache", "ok", f"{measured}: the agent makes it")
        return Finding("cache", "warn", measured, "the agent's unit makes it; or run as its user")
    measured = f"{fact.path}, {fact.owner}'s, mode {fact.mode:04o}"
    if fact.mode & 0o022:
        advice = f"others could change what loaders read; run: chmod go-w {fact.path}"
        return Finding("cache", "fail", measured, advice, 4)
    if not fact.writable and not fact.agent_runs:
        advice = f"run this command as the agent's user, or: chown -R USER {fact.path}"
        return Finding("cache", "warn", f"{measured}, not ours to write", advice)
    if fact.closed:
        advice = f"users of other containers can't read models; run: chmod o+x {fact.closed}"
        return Finding("cache", "warn", measured, advice)
    return Finding("cache", "ok", measured)


def _space(fact: Space) -> Finding:
    measured = f"{format_bytes(fact.free)} free of {format_bytes(fact.total)}"
    advice = f"run: p2pcache prune; or set cache_dir to a larger disk than {fact.path}'s"
    if fact.free <= fact.kept:
        measured += f", {format_bytes(fact.kept)} are kept free"
        return Finding("space", "fail", measured, advice, 5)
    if fact.free - fact.kept < SPACE_WARN_BYTES:
        return Finding("space", "warn", measured, advice)
    return Finding("space", "ok", measured)


def _files(fact: Files) -> Finding:
    measured = f"{fact.limit} open files ({fact.whose})"
    advice = "raise it: LimitNOFILE=65536 in the unit, or ulimit -n"
    if fact.limit < FILES_FAIL:
        return Finding("files", "fail", measured, advice, 2)
    level: Level = "warn" if fact.limit < FILES_WARN else "ok"
    return Finding("files", level, measured, advice if level == "warn" else "")


def _network(fact: Network) -> Finding:
    speed = "speed unknown"
    if fact.speed_mbit > 0:
        seconds = MODEL_BYTES * 8 / (fact.speed_mbit * 1e6)
        speed = f"{fact.speed_mbit / 1000:g} Gbit/s (100 GB in {seconds:.0f} s at best)"
    measured = f"{fact.advertised} on {fact.interface or 'no interface'}, {speed}, MTU {fact.mtu}"
    if fact.source and fact.loopback:
        advice = 'peers can\'t dial it; set listen = "0.0.0.0:7401" and a cluster key'
        return Finding("network", "warn", f"{fact.advertised} is this machine's alone", advice)
    if not fact.interface:
        advice = "peers will dial it: does it lead to this node (NAT, host name)?"
        return Finding("network", "warn", f"no interface here has {fact.host}", advice)
    if not fact.up:
        return Finding("network", "fail", measured, f"{fact.interface} is down; bring it up", 8)
    if fact.source and fact.source != fact.host:
        advice = f"the tracker is reached from {fact.source}; should advertise name that one?"
        return Finding("network", "warn", measured, advice)
    if 0 < fact.speed_mbit < SLOW_LINK_MBIT:
        return Finding("network", "warn", measured, "look at cable, port and duplex")
    if fact.mtu < 1500:
        advice = "a tunnel? mind that path MTU discovery (ICMP) gets through"
        return Finding("network", "warn", measured, advice)
    return Finding("network", "ok", measured)


def _kernel(fact: Kernel) -> Finding:
    measured = ", ".join(
        f"{name} up to {format_bytes(size)}" for name, size in fact.buffers.items()
    )
    small = [name for name, size in fact.buffers.items() if size < TCP_WARN_BYTES]
    if small:
        sizes = " ".join(f"net.ipv4.{name}='4096 131072 16777216'" for name in small)
        return Finding("kernel", "warn", measured, f"run: sysctl -w {sizes}")
    return Finding("kernel", "ok", measured or "not shown here")


def _clock(fact: Clock) -> Finding:
    texts = [f"{_seconds(ahead)} {who}'s" for who, ahead in fact.ahead_s.items()]
    known = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}
    measured = ", ".join([*texts, known[fact.synchronised]])
    advice = "set the clock by NTP: timedatectl set-ntp true, or start chrony"
    ahead = max((abs(value) for value in fact.ahead_s.values()), default=0.0)
    if ahead > SKEW_FAIL_S:
        refused = "signatures, tokens and certificates are refused"
        return Finding("clock", "fail", measured, f"{refused}; {advice}", 4)
    if ahead > SKEW_WARN_S or fact.synchronised is False:
        return Finding("clock", "warn", measured, advice)
    return Finding("clock", "ok", measured)


def _seconds(ahead: float) -> str:
    if abs(ahead) <= 1.0:  # the resolution of a Date header
        return "within 1 s of the"
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the"


def _trackers(fact: Trackers) -> list[Finding]:
    """One line for each. One that is away is no failure while another one is active."""
    if not fact.each:
        return [Finding("tracker", "ok", "none: this node works alone, from the origin")]
    found = []
    for url, one in fact.each.items():
        if isinstance(one, Tracker):
            found.append(_tracker(one, known=fact.active or bool(fact.named)))
            continue
        failed = _failed("tracker", one)
        if url not in failed.measured:
            failed = failed._replace(measured=f"{url}: {failed.measured}")
        found.append(failed._replace(level="warn", code=0) if fact.active else failed)
    return found


def _tracker(fact: Tracker, *, known: bool) -> Finding:
    """`known`: which tracker is active."""
    role = {STANDBY: " is a standby,", "active": " is active,"}.get(fact.role, "")
    measured = f"{fact.url}{role} took us for a member in {fact.seconds * 1000:.0f} ms"
    if fact.role == STANDBY and not known:
        advice = (
            "no tracker is active: wait half a minute; if it stays so, the trackers' logs say why"
        )
        return Finding("tracker", "fail", measured, advice, 8)
    return Finding("tracker", "ok", measured)


def _origin(fact: Origin) -> Finding:
    if not fact.url:
        advice = "set origin here or on the tracker: s3://BUCKET/PREFIX or file:///DIRECTORY"
        return Finding("origin", "warn", "none known", advice)
    measured = f"{fact.url} lists in {fact.seconds * 1000:.0f} ms"
    return Finding("origin", "ok", measured + (", no model yet" if fact.empty else ""))


def _agent(fact: Agent) -> Finding:
    if not fact.there:
        advice = "start one: systemctl start p2pcache-agent"
        return Finding("agent", "warn", f"none at {fact.address}", advice)
    measured = f"version {fact.version} at {fact.address}"
    if fact.reasons:
        return Finding("agent", "warn", f"{measured}, not ready", "; ".join(fact.reasons))
    if fact.unreached:
        measured += f", but no other node reaches it at {fact.unreached}"
        advice = (
            "open that port between the nodes (firewall, security group, NetworkPolicy); if the "
            "address isn't its own, set --advertise"
        )
        return Finding("agent", "warn", measured, advice)
    if fact.version != fact.ours:
        advice = f"this command is {fact.ours}; run: systemctl restart p2pcache-agent"
        return Finding("agent", "warn", measured, advice)
    if fact.differs:
        advice = (
            "what stands above is of other settings; give the same --config, environment or flags"
        )
        own = f"{measured}, ready, but it was started with {', '.join(fact.differs)}"
        return Finding("agent", "warn", own, advice)
    return Finding("agent", "ok", f"{measured}, ready")


def _disk(fact: Disk) -> Finding:
    write, read = format_bytes(fact.write), format_bytes(fact.read)
    measured = f"writes {write}/s, reads {read}/s ({fact.kind}, {fact.path})"
    if fact.kind.startswith(REMOTE_FS):
        return Finding("disk", "warn", measured, "set cache_dir to a local disk, best NVMe")
    if fact.kind in MEMORY_FS:
        advice = "this is memory, and empty after a boot; set cache_dir to a disk"
        return Finding("disk", "warn", measured, advice)
    if min(fact.write, fact.read) < DISK_WARN_BYTES_PER_S:
        return Finding(
            "disk", "warn", measured, "pulls wait for it; set cache_dir to a faster disk"
        )
    return Finding("disk", "ok", measured)


_JUDGES: dict[type, Callable[[Any], Finding]] = {
    Key: _key, Certificate: _certificate, Cache: _cache, Space: _space, Files: _files,
    Network: _network, Kernel: _kernel, Clock: _clock, Origin: _origin, Agent: _agent, Disk: _disk,
}  # fmt: skip
