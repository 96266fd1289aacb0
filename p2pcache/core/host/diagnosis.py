"""The diagnosis of `p2pcache doctor`: from measured facts about a node to findings.

Each judge makes one `Finding` of what was measured for one check: a level, the measured value and advice. Causes stand
before their effects (`ORDER`), so the first failure is the one to mend, and its code is the command's exit code.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

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
    WARNINGS_TOLD,
)
from p2pcache.core.units import format_bytes
from p2pcache.errors import OriginUnavailable

Level = Literal["ok", "warn", "fail"]

ORDER = ("settings", "key", "certificate", "cache", "space", "files", "network", "kernel",
         "clock", "tracker", "origin", "agent", "disk")  # fmt: skip

AWAY_ADVICE = "look at the storage and the way there; pulls ask again, and go on by themselves when it answers"

REMOTE_FS = ("nfs", "cifs", "smb", "ceph", "gluster", "lustre", "9p", "fuse")
MEMORY_FS = ("tmpfs", "ramfs")
STANDBY = "standby"  # a tracker's word for itself while another one is active


class Finding(NamedTuple):
    """One line of the diagnosis."""

    check: str
    level: Level
    measured: str
    advice: str = ""
    code: int = 0  # the exit code of a failure, else 0


class Trouble(NamedTuple):
    """Why something couldn't be measured: an exit code and one line, advice after a semicolon."""

    code: int
    text: str


class Tracker(NamedTuple):
    """A tracker that accepted this node as a member."""

    url: str
    seconds: float
    role: str = ""  # "active" or "standby"; "": it doesn't say, as one of an older release, or didn't in time
    active: str = ""  # of a standby: URL of the active one; "": it knows none


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Causes before their effects."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.check))


def worst(findings: Iterable[Finding]) -> int:
    """The exit code: that of the first failure, whose repair may repair the others; 0: nothing failed."""
    return next((f.code for f in findings if f.level == "fail"), 0)


def failed(check: str, trouble: Trouble) -> Finding:
    """Something couldn't be measured, and that is the fault."""
    measured, _, advice = trouble.text.partition("; ")
    if check == "origin" and trouble.code == OriginUnavailable.exit_code:
        advice = advice or AWAY_ADVICE
    return Finding(check, "fail", measured, advice, trouble.code)


def unmeasured(check: str, why: str, advice: str) -> Finding:
    """Something can't be measured, or not by this user, which is no fault of the node."""
    return Finding(check, "warn", f"not measured: {why}", advice)


def key_file(path: str, mode: int, blind: str) -> Finding:
    """The cluster key guards the daemon's port; `blind`: the agent's user, if it can't read the key."""
    if blind:
        advice = f"run: chgrp {blind} {path} && chmod 640 {path}"
        return Finding("key", "fail", f"user {blind} can't read {path}", advice, 4)
    return Finding("key", "ok", f"{path}, mode {mode:04o}")


def no_key(
    listen: str, *, loopback: bool, insecure: bool, certificate: bool, privileged: bool
) -> Finding:
    """No cluster key guards the daemon's port; `privileged`: the caller can see the agent's settings."""
    how = (
        "set cluster_key_file to the cluster's key, the same on every node (docs/trust.md)"
        if privileged
        else "this user may not see the agent's settings: run this as root or as a member of group p2pcache"
    )
    if certificate:
        return Finding("key", "ok", "none: members show certificates")
    if loopback:
        return Finding("key", "ok", f"none: only this machine reaches {listen}")
    if insecure:
        return Finding("key", "warn", f"none, and {listen} is open to everybody", how)
    return Finding("key", "fail", f"none: the agent refuses to listen on {listen}", how, 2)


def certificate(member: str, warnings: Sequence[str]) -> Finding:
    """This member's certificate, and warnings about it."""
    return Finding("certificate", "warn" if warnings else "ok", member, "; ".join(warnings))


def cache(
    path: str, *, exists: bool, mode: int, owner: str, writable: bool, agent_runs: bool, closed: str
) -> Finding:
    """The cache directory; `closed`: a parent directory that users of containers can't enter."""
    if not exists:
        measured = f"{path} isn't there yet"
        if writable:
            return Finding("cache", "ok", f"{measured}: the agent makes it")
        return Finding("cache", "warn", measured, "the agent's unit makes it; or run as its user")
    measured = f"{path}, {owner}'s, mode {mode:04o}"
    if mode & 0o022:
        advice = f"others could change what loaders read; run: chmod go-w {path}"
        return Finding("cache", "fail", measured, advice, 4)
    if not writable and not agent_runs:
        advice = f"run this command as the agent's user, or: chown -R USER {path}"
        return Finding("cache", "warn", f"{measured}, not ours to write", advice)
    if closed:
        advice = f"users of other containers can't read models; run: chmod o+x {closed}"
        return Finding("cache", "warn", measured, advice)
    return Finding("cache", "ok", measured)


def space(path: str, free: int, total: int, kept: int) -> Finding:
    """Space of a disk in bytes; pulls leave `kept` bytes free."""
    measured = f"{format_bytes(free)} free of {format_bytes(total)}"
    advice = f"run: p2pcache prune; or set cache_dir to a larger disk than {path}'s"
    if free <= kept:
        measured += f", {format_bytes(kept)} are kept free"
        return Finding("space", "fail", measured, advice, 5)
    if free - kept < SPACE_WARN_BYTES:
        return Finding("space", "warn", measured, advice)
    return Finding("space", "ok", measured)


def files(limit: int, whose: str) -> Finding:
    """The limit of open files of a process."""
    measured = f"{limit} open files ({whose})"
    advice = "raise it: LimitNOFILE=65536 in the unit, or ulimit -n"
    if limit < FILES_FAIL:
        return Finding("files", "fail", measured, advice, 2)
    level: Level = "warn" if limit < FILES_WARN else "ok"
    return Finding("files", level, measured, advice if level == "warn" else "")


def network(
    interface: str, advertised: str, host: str, *, loopback: bool, speed_mbit: int, mtu: int, up: bool, source: str
) -> Finding:  # fmt: skip
    """The interface of the address that peers dial.

    Args:
        interface: its name; "": no interface has the address.
        advertised: the address with its port.
        host: the address alone.
        loopback: only this machine can dial it.
        speed_mbit: 0: unknown.
        mtu: bytes.
        up: it carries.
        source: the address from which the tracker is reached; "": it is on this host, or unknown.
    """
    speed = "speed unknown"
    if speed_mbit > 0:
        seconds = MODEL_BYTES * 8 / (speed_mbit * 1e6)
        speed = f"{speed_mbit / 1000:g} Gbit/s (100 GB in {seconds:.0f} s at best)"
    measured = f"{advertised} on {interface or 'no interface'}, {speed}, MTU {mtu}"
    if source and loopback:
        advice = 'peers can\'t dial it; set listen = "0.0.0.0:7401" and a cluster key'
        return Finding("network", "warn", f"{advertised} is this machine's alone", advice)
    if not interface:
        advice = "peers will dial it: does it lead to this node (NAT, host name)?"
        return Finding("network", "warn", f"no interface here has {host}", advice)
    if not up:
        return Finding("network", "fail", measured, f"{interface} is down; bring it up", 8)
    if source and source != host:
        advice = f"the tracker is reached from {source}; should advertise name that one?"
        return Finding("network", "warn", measured, advice)
    if 0 < speed_mbit < SLOW_LINK_MBIT:
        return Finding("network", "warn", measured, "look at cable, port and duplex")
    if mtu < 1500:
        advice = "a tunnel? mind that path MTU discovery (ICMP) gets through"
        return Finding("network", "warn", measured, advice)
    return Finding("network", "ok", measured)


def kernel(buffers: Mapping[str, int]) -> Finding:
    """Bytes to which a connection's buffers grow, by the name of the kernel's setting."""
    measured = ", ".join(f"{name} up to {format_bytes(size)}" for name, size in buffers.items())
    small = [name for name, size in buffers.items() if size < TCP_WARN_BYTES]
    if small:
        sizes = " ".join(f"net.ipv4.{name}='4096 131072 16777216'" for name in small)
        return Finding("kernel", "warn", measured, f"run: sysctl -w {sizes}")
    return Finding("kernel", "ok", measured or "not shown here")


def clock(ahead_s: Mapping[str, float], *, synchronised: bool | None) -> Finding:
    """Seconds by which this clock is ahead of other clocks, by their names; is it kept in time (None: unknown)?"""
    texts = [f"{_seconds(ahead)} {who}'s" for who, ahead in ahead_s.items()]
    known = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}
    measured = ", ".join([*texts, known[synchronised]])
    advice = "set the clock by NTP: timedatectl set-ntp true, or start chrony"
    ahead = max((abs(value) for value in ahead_s.values()), default=0.0)
    if ahead > SKEW_FAIL_S:
        refused = "signatures, tokens and certificates are refused"
        return Finding("clock", "fail", measured, f"{refused}; {advice}", 4)
    if ahead > SKEW_WARN_S or synchronised is False:
        return Finding("clock", "warn", measured, advice)
    return Finding("clock", "ok", measured)


def _seconds(ahead: float) -> str:
    if abs(ahead) <= 1.0:  # the resolution of a Date header
        return "within 1 s of the"
    return f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the"


def has_active(trackers: Mapping[str, Tracker | Trouble]) -> bool:
    """Whether one of them is active: it says so, or is the only one and doesn't say what it is."""
    found = [one for one in trackers.values() if isinstance(one, Tracker)]
    alone = len({name.partition(" ")[0] for name in trackers}) == 1
    words = ("active", "") if alone else ("active",)
    return any(one.role in words for one in found)


def named_active(trackers: Mapping[str, Tracker | Trouble]) -> str:
    """The active one, as a standby names it; "": none does."""
    known = (one.active for one in trackers.values() if isinstance(one, Tracker))
    return next(filter(None, known), "")


def tracker_lines(trackers: Mapping[str, Tracker | Trouble]) -> list[Finding]:
    """One line for each, by URL, with the address where a name has several; none: this node has no tracker.

    One that is away is no failure while another one is active.
    """
    active = has_active(trackers)
    if not trackers:
        return [Finding("tracker", "ok", "none: this node works alone, from the origin")]
    found = []
    for url, one in trackers.items():
        if isinstance(one, Tracker):
            found.append(_tracker(one, known=active or bool(named_active(trackers))))
            continue
        line = failed("tracker", one)
        if url not in line.measured:
            line = line._replace(measured=f"{url}: {line.measured}")
        found.append(line._replace(level="warn", code=0) if active else line)
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


def no_origin() -> Finding:
    """No origin is known."""
    advice = "set origin here or on the tracker: s3://BUCKET/PREFIX or file:///DIRECTORY"
    return Finding("origin", "warn", "none known", advice)


def origin(url: str, seconds: float, *, empty: bool) -> Finding:
    """An origin that could be listed."""
    measured = f"{url} lists in {seconds * 1000:.0f} ms"
    return Finding("origin", "ok", measured + (", no model yet" if empty else ""))


def no_agent(address: str) -> Finding:
    """There is no socket, and the user named no address."""
    advice = "start one: systemctl start p2pcache-agent"
    return Finding("agent", "warn", f"none at {address}", advice)


def agent(
    address: str, version: str, *, ours: str, reasons: Sequence[str], warnings: Sequence[str],
    differs: Sequence[str], unreached: str,
) -> Finding:  # fmt: skip
    """The agent at the socket.

    Args:
        address: of its API.
        version: its release.
        ours: this command's release.
        reasons: why it isn't ready.
        warnings: what it says itself that an operator should look at.
        differs: its settings that differ from the examined ones, in words.
        unreached: its address, if other nodes lately dialled it in vain.
    """
    measured = f"version {version} at {address}"
    if reasons:
        return Finding("agent", "warn", f"{measured}, not ready", "; ".join(reasons))
    if unreached:
        measured += f", but no other node reaches it at {unreached}"
        advice = (
            "open that port between the nodes (firewall, security group, NetworkPolicy); if the "
            "address isn't its own, set --advertise"
        )
        return Finding("agent", "warn", measured, advice)
    if version != ours:
        advice = f"this command is {ours}; run: systemctl restart p2pcache-agent"
        return Finding("agent", "warn", measured, advice)
    if differs:
        advice = (
            "what stands above is of other settings; give the same --config, environment or flags"
        )
        own = f"{measured}, ready, but it was started with {', '.join(differs)}"
        return Finding("agent", "warn", own, advice)
    # The last: they may stand for long, and those before are of what the examination itself is worth.
    if warnings:
        more = len(warnings) - WARNINGS_TOLD
        rest = [f"and {more} more"] if more > 0 else []
        told = "; ".join([*warnings[:WARNINGS_TOLD], *rest])
        return Finding("agent", "warn", f"{measured}, ready, and it warns", told)
    return Finding("agent", "ok", f"{measured}, ready")


def disk(path: str, kind: str, write_rate: float, read_rate: float) -> Finding:
    """Measured rates in bytes per second, durable writes and uncached reads."""
    write, read = format_bytes(write_rate), format_bytes(read_rate)
    measured = f"writes {write}/s, reads {read}/s ({kind}, {path})"
    if kind.startswith(REMOTE_FS):
        return Finding("disk", "warn", measured, "set cache_dir to a local disk, best NVMe")
    if kind in MEMORY_FS:
        advice = "this is memory, and empty after a boot; set cache_dir to a disk"
        return Finding("disk", "warn", measured, advice)
    if min(write_rate, read_rate) < DISK_WARN_BYTES_PER_S:
        return Finding(
            "disk", "warn", measured, "pulls wait for it; set cache_dir to a faster disk"
        )
    return Finding("disk", "ok", measured)
