"""From facts to findings: what is judged how, and which failure ends the command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.host import diagnosis as d
from p2pcache.core.host import node_facts as nf

KEY = nf.Key("/k", "0.0.0.0:7401", loopback=False, insecure=False, certificate=False, mode=0o640)
CACHE = nf.Cache("/c", exists=True, mode=0o755, owner="me", writable=True, agent_runs=False)
NET = nf.Network("eth0", "10.0.0.5:7401", "10.0.0.5", loopback=False, speed_mbit=25000, mtu=1500,
                up=True, source="10.0.0.5")  # fmt: skip
GB = 10**9
T = "http://t:7400"

GOOD: dict[str, nf.Fact] = {
    "key": KEY,
    "certificate": nf.Certificate("agent one", ()),
    "cache": CACHE,
    "space": nf.Space("/c", 500 * GB, 1000 * GB, GB),
    "files": nf.Files(65536, "the agent's"),
    "network": NET,
    "kernel": nf.Kernel({"tcp_rmem": 6 << 20, "tcp_wmem": 4 << 20}),
    "clock": nf.Clock({"tracker": 0.4, "origin": -0.7}, synchronised=True),
    "tracker": nf.Trackers({T: nf.Tracker(T, 0.012)}),
    "origin": nf.Origin("s3://m", 0.03, empty=True),
    "agent": nf.Agent("unix:///s", there=True, version="1", ours="1", reasons=()),
    "disk": nf.Disk("/c", "ext4", 2 * GB, 3 * GB),
}
BAD: list[tuple[str, nf.Fact, str, int, str]] = [
    ("key", KEY._replace(path=""), "fail", 2, "refuses to listen"),
    ("key", KEY._replace(path="", insecure=True), "warn", 0, "everybody"),
    ("key", KEY._replace(path="", loopback=True), "ok", 0, "only this machine"),
    ("key", KEY._replace(path="", certificate=True), "ok", 0, "certificates"),
    ("key", KEY._replace(blind="p2pcache"), "fail", 4, "chgrp p2pcache /k"),
    ("certificate", nf.Certificate("agent one", ("it ends soon",)), "warn", 0, "ends soon"),
    ("cache", CACHE._replace(mode=0o777), "fail", 4, "chmod go-w /c"),
    ("cache", CACHE._replace(writable=False), "warn", 0, "agent's user"),
    ("cache", CACHE._replace(writable=False, agent_runs=True), "ok", 0, "me's"),
    ("cache", CACHE._replace(closed="/srv"), "warn", 0, "chmod o+x /srv"),
    ("cache", CACHE._replace(exists=False), "ok", 0, "isn't there yet"),
    ("cache", CACHE._replace(exists=False, writable=False), "warn", 0, "unit makes it"),
    ("space", nf.Space("/c", GB, 1000 * GB, GB), "fail", 5, "prune"),
    ("space", nf.Space("/c", 10 * GB, 1000 * GB, GB), "warn", 0, "prune"),
    ("files", nf.Files(1000, "x"), "fail", 2, "LimitNOFILE"),
    ("files", nf.Files(1024, "x"), "warn", 0, "LimitNOFILE"),
    ("network", NET._replace(host="127.0.0.1", loopback=True), "warn", 0, "can't dial"),
    ("network", NET._replace(host="127.0.0.1", loopback=True, source=""), "ok", 0, "MTU"),
    ("network", NET._replace(interface=""), "warn", 0, "NAT"),
    ("network", NET._replace(up=False), "fail", 8, "is down"),
    ("network", NET._replace(source="10.9.9.9"), "warn", 0, "10.9.9.9"),
    ("network", NET._replace(speed_mbit=100), "warn", 0, "cable"),
    ("network", NET._replace(speed_mbit=0), "ok", 0, "unknown"),
    ("network", NET._replace(mtu=1400), "warn", 0, "tunnel"),
    ("kernel", nf.Kernel({"tcp_rmem": 1 << 20, "tcp_wmem": 4 << 20}), "warn", 0, "tcp_rmem='"),
    ("kernel", nf.Kernel({}), "ok", 0, "not shown"),
    ("clock", nf.Clock({"tracker": -30.2}, synchronised=None), "warn", 0, "30 s behind the tracker's"),
    ("clock", nf.Clock({"tracker": 0, "origin": 900}, synchronised=True), "fail", 4, "ahead of"),
    ("clock", nf.Clock({}, synchronised=False), "warn", 0, "NTP"),
    ("tracker", nf.Trackers({}), "ok", 0, "alone"),
    ("tracker", nf.Trouble(8, "no answer; check the host"), "fail", 8, "check the host"),
    ("origin", nf.Trouble(7, "it answers 503 SlowDown"), "fail", 7, "pulls ask again"),
    ("origin", nf.Trouble(7, "it stalled; check the way"), "fail", 7, "check the way"),
    ("origin", nf.Origin("", 0, empty=True), "warn", 0, "s3://"),
    ("agent", nf.Agent("unix:///s", False, "", "", ()), "warn", 0, "systemctl start"),
    ("agent", nf.Agent("unix:///s", True, "1", "1", ("no tracker",)), "warn", 0, "no tracker"),
    ("agent", nf.Agent("unix:///s", True, "1", "2", ()), "warn", 0, "restart"),
    ("agent", nf.Agent("unix:///s", True, "1", "1", (), ("cache /b",)), "warn", 0, "--config"),
    ("agent", nf.Agent("unix:///s", True, "1", "1", (), (), "h:7401"), "warn", 0, "reaches it at h:7401"),
    ("agent", nf.Agent("unix:///s", True, "1", "1", (), (), "h:7401"), "warn", 0, "--advertise"),
    ("disk", nf.Disk("/c", "nfs4", GB, GB), "warn", 0, "local disk"),
    ("disk", nf.Unmeasured("not ours", "run as root"), "warn", 0, "not measured: not ours -> run as"),
    ("disk", nf.Disk("/c", "tmpfs", GB, GB), "warn", 0, "memory"),
    ("disk", nf.Disk("/c", "ext4", 30 * 10**6, GB), "warn", 0, "faster disk"),
]  # fmt: skip


def test_a_good_node() -> None:
    findings = d.examine(GOOD)
    assert [f.check for f in findings] == [name for name in d.ORDER if name != "settings"]
    assert {f.level for f in findings} == {"ok"}
    assert d.worst(findings) == 0
    assert not any(f.advice for f in findings)


@pytest.mark.parametrize(("check", "fact", "level", "code", "says"), BAD)
def test_each_trouble_has_advice(
    check: str, fact: nf.Fact, level: str, code: int, says: str
) -> None:
    (finding,) = d.examine({check: fact})
    assert (finding.check, finding.level, finding.code) == (check, level, code)
    assert says in f"{finding.measured} -> {finding.advice}"
    assert bool(finding.advice) == (level != "ok")


def trackers(*each: nf.Tracker | nf.Trouble) -> list[tuple[str, int, str]]:
    """Level, code and text of each line, for trackers at http://t0:7400 and so on."""
    known = {f"http://t{number}:7400": one for number, one in enumerate(each)}
    found = d.examine({"tracker": nf.Trackers(known)})
    return [(one.level, one.code, f"{one.measured} -> {one.advice}") for one in found]


def test_each_tracker_has_a_line() -> None:
    active = nf.Tracker("http://t0:7400", 0.01, "active")
    standby = nf.Tracker("http://t1:7400", 0.01, nf.STANDBY, "http://t0:7400")
    away = nf.Trouble(8, "tracker http://t2:7400 is not reachable: no; check the host")
    lines = trackers(active, standby, away, nf.Trouble(4, "it refused us: another key; compare"))
    assert [line[:2] for line in lines] == [("ok", 0), ("ok", 0), ("warn", 0), ("warn", 0)]
    for line, text in zip(lines, ("t0:7400 is active", "t1:7400 is a standby", "t2:7400 is not reachable",
                                  "http://t3:7400: it refused us"), strict=True):  # fmt: skip
        assert text in line[2]
    lost = nf.Trouble(8, "tracker http://t0:7400 is not reachable: no; check the host")
    assert [line[:2] for line in trackers(lost, standby)] == [("fail", 8), ("ok", 0)]
    none = standby._replace(active="")
    assert [line[:2] for line in trackers(none, none)] == [("fail", 8), ("fail", 8)]
    assert "no tracker is active" in trackers(none)[0][2]


def test_a_tracker_that_says_no_role_is_active_only_if_it_is_alone() -> None:
    """Its status may have timed out: then it may as well be a standby."""
    silent = nf.Tracker("http://t0:7400", 0.01)
    lost = nf.Trouble(8, "tracker http://t1:7400 is not reachable: no; check the host")
    assert [line[:2] for line in trackers(silent)] == [("ok", 0)]
    assert [line[:2] for line in trackers(silent, lost)] == [("ok", 0), ("fail", 8)]
    addresses: dict[str, nf.Tracker | nf.Trouble] = {
        f"http://t0:7400 ({one})": nf.Tracker(f"http://t0:7400 ({one})", 0.01)
        for one in ("10.0.0.1", "10.0.0.2")
    }
    assert nf.Trackers(addresses).active, "one name"
    active = nf.Tracker("http://t2:7400", 0.01, "active")
    assert trackers(silent, lost, active)[1][:2] == ("warn", 0)


def test_the_first_cause_gives_the_code() -> None:
    facts = GOOD | {"tracker": nf.Trouble(8, "x"), "space": nf.Space("/c", 0, GB, GB)}
    assert d.worst(d.examine(facts)) == 5
    assert d.worst(d.examine(facts | {"settings": nf.Trouble(2, "unknown key")})) == 2


@given(
    st.dictionaries(
        st.sampled_from([n for n in d.ORDER if n != "settings"]),
        st.tuples(st.integers(1, 10), st.text()),
    )
)
def test_the_exit_code_is_that_of_a_failure_or_0(troubles: dict[str, tuple[int, str]]) -> None:
    facts = GOOD | {name: nf.Trouble(*trouble) for name, trouble in troubles.items()}
    findings = d.examine(facts)
    failed = [f for f in findings if f.level == "fail"]
    assert {f.check for f in failed} == set(troubles)
    assert d.worst(findings) == (failed[0].code if failed else 0)


def test_one_tracker_of_an_older_release_is_active_by_each_of_its_addresses() -> None:
    assert nf.Trackers({f"{T} (a)": nf.Tracker(T, 0.01), f"{T} (b)": nf.Tracker(T, 0.02)}).active
    assert not nf.Trackers(
        {T: nf.Tracker(T, 0.01), "http://b:1": nf.Tracker("http://b:1", 0.01)}
    ).active
