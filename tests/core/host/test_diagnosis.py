"""From facts to findings: what is judged how, and which failure ends the command."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.host import diagnosis as d

NO_KEY = partial(d.no_key, "0.0.0.0:7401", loopback=False, insecure=False, certificate=False,
                 privileged=True)  # fmt: skip
CACHE = partial(d.cache, "/c", exists=True, mode=0o755, owner="me", writable=True, agent_runs=False,
                closed="")  # fmt: skip
NET = partial(d.network, interface="eth0", advertised="10.0.0.5:7401", host="10.0.0.5",
              loopback=False, speed_mbit=25000, mtu=1500, up=True, source="10.0.0.5")  # fmt: skip
AGENT = partial(d.agent, "unix:///s", version="1", ours="1", reasons=(), warnings=(), differs=(),
                unreached="")  # fmt: skip
GB = 10**9
T = "http://t:7400"

GOOD = [
    d.key_file("/k", 0o640, ""),
    d.certificate("agent one", ()),
    CACHE(),
    d.space("/c", 500 * GB, 1000 * GB, GB),
    d.files(65536, "the agent's"),
    NET(),
    d.kernel({"tcp_rmem": 6 << 20, "tcp_wmem": 4 << 20}),
    d.clock({"tracker": 0.4, "origin": -0.7}, synchronised=True),
    *d.tracker_lines({T: d.Tracker(T, 0.012)}),
    d.origin("s3://m", 0.03, empty=True),
    AGENT(),
    d.disk("/c", "ext4", 2 * GB, 3 * GB),
]
BAD: list[tuple[d.Finding, str, int, str]] = [
    (NO_KEY(), "fail", 2, "refuses to listen"),
    (NO_KEY(insecure=True), "warn", 0, "everybody"),
    (NO_KEY(loopback=True), "ok", 0, "only this machine"),
    (NO_KEY(certificate=True), "ok", 0, "certificates"),
    (d.key_file("/k", 0o640, "p2pcache"), "fail", 4, "chgrp p2pcache /k"),
    (d.certificate("agent one", ("it ends soon",)), "warn", 0, "ends soon"),
    (CACHE(mode=0o777), "fail", 4, "chmod go-w /c"),
    (CACHE(writable=False), "warn", 0, "agent's user"),
    (CACHE(writable=False, agent_runs=True), "ok", 0, "me's"),
    (CACHE(closed="/srv"), "warn", 0, "chmod o+x /srv"),
    (CACHE(exists=False), "ok", 0, "isn't there yet"),
    (CACHE(exists=False, writable=False), "warn", 0, "unit makes it"),
    (d.space("/c", GB, 1000 * GB, GB), "fail", 5, "prune"),
    (d.space("/c", 10 * GB, 1000 * GB, GB), "warn", 0, "prune"),
    (d.files(1000, "x"), "fail", 2, "LimitNOFILE"),
    (d.files(1024, "x"), "warn", 0, "LimitNOFILE"),
    (NET(host="127.0.0.1", loopback=True), "warn", 0, "can't dial"),
    (NET(host="127.0.0.1", loopback=True, source=""), "ok", 0, "MTU"),
    (NET(interface=""), "warn", 0, "NAT"),
    (NET(up=False), "fail", 8, "is down"),
    (NET(source="10.9.9.9"), "warn", 0, "10.9.9.9"),
    (NET(speed_mbit=100), "warn", 0, "cable"),
    (NET(speed_mbit=0), "ok", 0, "unknown"),
    (NET(mtu=1400), "warn", 0, "tunnel"),
    (d.kernel({"tcp_rmem": 1 << 20, "tcp_wmem": 4 << 20}), "warn", 0, "tcp_rmem='"),
    (d.kernel({}), "ok", 0, "not shown"),
    (d.clock({"tracker": -30.2}, synchronised=None), "warn", 0, "30 s behind the tracker's"),
    (d.clock({"tracker": 0, "origin": 900}, synchronised=True), "fail", 4, "ahead of"),
    (d.clock({}, synchronised=False), "warn", 0, "NTP"),
    (d.tracker_lines({})[0], "ok", 0, "alone"),
    (d.failed("tracker", d.Trouble(8, "no answer; check the host")), "fail", 8, "check the host"),
    (d.failed("origin", d.Trouble(7, "it answers 503 SlowDown")), "fail", 7, "pulls ask again"),
    (d.failed("origin", d.Trouble(7, "it stalled; check the way")), "fail", 7, "check the way"),
    (d.no_origin(), "warn", 0, "s3://"),
    (d.no_agent("unix:///s"), "warn", 0, "systemctl start"),
    (AGENT(reasons=("no tracker",)), "warn", 0, "no tracker"),
    (AGENT(ours="2"), "warn", 0, "restart"),
    (AGENT(differs=("cache /b",)), "warn", 0, "--config"),
    (AGENT(warnings=["storage refuses our key"]), "warn", 0, "storage refuses our key"),
    (AGENT(warnings=["full"], ours="2"), "warn", 0, "restart"),
    (AGENT(warnings=["full"], differs=("cache /b",)), "warn", 0, "--config"),
    (AGENT(warnings=["a", "b", "c"]), "warn", 0, "it warns -> a; b; c"),
    (AGENT(warnings=["a", "b", "c", "d", "e"]), "warn", 0, "it warns -> a; b; c; and 2 more"),
    (AGENT(unreached="h:7401"), "warn", 0, "reaches it at h:7401"),
    (AGENT(unreached="h:7401"), "warn", 0, "--advertise"),
    (d.disk("/c", "nfs4", GB, GB), "warn", 0, "local disk"),
    (d.unmeasured("disk", "not ours", "run as root"), "warn", 0, "not measured: not ours -> run as"),
    (d.disk("/c", "tmpfs", GB, GB), "warn", 0, "memory"),
    (d.disk("/c", "ext4", 30 * 10**6, GB), "warn", 0, "faster disk"),
]  # fmt: skip


def test_a_good_node() -> None:
    findings = d.in_order(reversed(GOOD))
    assert [f.check for f in findings] == [name for name in d.ORDER if name != "settings"]
    assert {f.level for f in findings} == {"ok"}
    assert d.worst(findings) == 0
    assert not any(f.advice for f in findings)


@pytest.mark.parametrize(("finding", "level", "code", "says"), BAD)
def test_each_trouble_has_advice(finding: d.Finding, level: str, code: int, says: str) -> None:
    assert (finding.level, finding.code) == (level, code)
    assert says in f"{finding.measured} -> {finding.advice}"
    assert bool(finding.advice) == (level != "ok")


def trackers(*each: d.Tracker | d.Trouble) -> list[tuple[str, int, str]]:
    """Level, code and text of each line, for trackers at http://t0:7400 and so on."""
    found = d.tracker_lines({f"http://t{number}:7400": one for number, one in enumerate(each)})
    return [(one.level, one.code, f"{one.measured} -> {one.advice}") for one in found]


def test_each_tracker_has_a_line() -> None:
    active = d.Tracker("http://t0:7400", 0.01, "active")
    standby = d.Tracker("http://t1:7400", 0.01, d.STANDBY, "http://t0:7400")
    away = d.Trouble(8, "tracker http://t2:7400 is not reachable: no; check the host")
    lines = trackers(active, standby, away, d.Trouble(4, "it refused us: another key; compare"))
    assert [line[:2] for line in lines] == [("ok", 0), ("ok", 0), ("warn", 0), ("warn", 0)]
    for line, text in zip(lines, ("t0:7400 is active", "t1:7400 is a standby", "t2:7400 is not reachable",
                                  "http://t3:7400: it refused us"), strict=True):  # fmt: skip
        assert text in line[2]
    lost = d.Trouble(8, "tracker http://t0:7400 is not reachable: no; check the host")
    assert [line[:2] for line in trackers(lost, standby)] == [("fail", 8), ("ok", 0)]
    none = standby._replace(active="")
    assert [line[:2] for line in trackers(none, none)] == [("fail", 8), ("fail", 8)]
    assert "no tracker is active" in trackers(none)[0][2]


def test_a_tracker_that_says_no_role_is_active_only_if_it_is_alone() -> None:
    """Its status may have timed out: then it may as well be a standby."""
    silent = d.Tracker("http://t0:7400", 0.01)
    lost = d.Trouble(8, "tracker http://t1:7400 is not reachable: no; check the host")
    assert [line[:2] for line in trackers(silent)] == [("ok", 0)]
    assert [line[:2] for line in trackers(silent, lost)] == [("ok", 0), ("fail", 8)]
    addresses: dict[str, d.Tracker | d.Trouble] = {
        f"http://t0:7400 ({one})": d.Tracker(f"http://t0:7400 ({one})", 0.01)
        for one in ("10.0.0.1", "10.0.0.2")
    }
    assert d.has_active(addresses), "one name"
    active = d.Tracker("http://t2:7400", 0.01, "active")
    assert trackers(silent, lost, active)[1][:2] == ("warn", 0)


def after(*found: d.Finding) -> list[d.Finding]:
    """The findings of a good node, but these."""
    checks = {one.check for one in found}
    return d.in_order([*found, *(one for one in GOOD if one.check not in checks)])


def test_the_first_cause_gives_the_code() -> None:
    lost = d.failed("tracker", d.Trouble(8, "x"))
    found = after(lost, d.space("/c", 0, GB, GB))
    assert d.worst(found) == 5
    assert d.worst(after(*found, d.failed("settings", d.Trouble(2, "unknown key")))) == 2


@given(
    st.dictionaries(
        st.sampled_from([n for n in d.ORDER if n != "settings"]),
        st.tuples(st.integers(1, 10), st.text()),
    )
)
def test_the_exit_code_is_that_of_a_failure_or_0(troubles: dict[str, tuple[int, str]]) -> None:
    findings = after(*(d.failed(name, d.Trouble(*said)) for name, said in troubles.items()))
    failed = [f for f in findings if f.level == "fail"]
    assert {f.check for f in failed} == set(troubles)
    assert d.worst(findings) == (failed[0].code if failed else 0)


def test_one_tracker_of_an_older_release_is_active_by_each_of_its_addresses() -> None:
    assert d.has_active({f"{T} (a)": d.Tracker(T, 0.01), f"{T} (b)": d.Tracker(T, 0.02)})
    assert not d.has_active({T: d.Tracker(T, 0.01), "http://b:1": d.Tracker("http://b:1", 0.01)})
