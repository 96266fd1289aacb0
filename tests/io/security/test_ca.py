import os
import ssl
import stat
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.errors import Conflict, NotAllowed, NotFound, UsageError
from p2pcache.io.security import ca, tls


class Files(NamedTuple):
    """What `tls.TlsSettings` asks for."""

    tls_cert: str
    tls_key: str
    tls_ca: str


def files(made: ca.Issued, root: Path) -> Files:
    return Files(str(made.cert), str(made.key), str(root / "ca.pem"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca") / "prod"
    ca.init(folder, cluster="prod")
    return folder


@pytest.fixture(scope="module")
def agent(root: Path) -> ca.Issued:
    return ca.issue(root, "node-1", role="agent")


def test_a_ca_is_private_and_never_overwritten(root: Path) -> None:
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "ca.key").stat().st_mode) == 0o600
    before = (root / "ca.key").read_bytes()
    with pytest.raises(Conflict, match="never overwritten"):
        ca.init(root, cluster="prod")
    assert (root / "ca.key").read_bytes() == before


def test_keys_are_private_whatever_the_umask(root: Path, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        made = ca.issue(root, "open", role="agent", out=tmp_path / "new")
    finally:
        os.umask(old)
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.cert.stat().st_mode) == 0o644
    with pytest.raises(Conflict):
        ca.issue(root, "open", role="agent", out=tmp_path / "new")


def test_a_certificate_names_its_member(root: Path, agent: ca.Issued) -> None:
    loaded = tls.load(*files(agent, root), "agent")
    assert loaded.member == Member("agent", "node-1")
    assert loaded.expires_at == pytest.approx(time.time() + 365 * 86400, abs=60)
    assert loaded.expires_at - loaded.warn_at == tls.WARN_S


def test_hosts_are_for_clients_that_check_them(root: Path, tmp_path: Path) -> None:
    made = ca.issue(root, "t", role="tracker", hosts=["t.example.org", "10.0.0.1"], out=tmp_path)
    shown = tls._rehearse(  # what curl would see
        tls.load(*files(made, root), "tracker").visitors, tls._bare(str(root / "ca.pem"))
    )
    assert {("DNS", "t.example.org"), ("IP Address", "10.0.0.1")} < set(shown["subjectAltName"])


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "ca", "-x", "ü", "x" * 81])
def test_names_that_are_none(root: Path, name: str) -> None:
    with pytest.raises(UsageError):
        ca.issue(root, name, role="agent")


@pytest.mark.parametrize("host", ["", "https://t", "t:7400", "ü"])
def test_hosts_that_are_none(root: Path, host: str) -> None:
    with pytest.raises(UsageError):
        ca.issue(root, "host", role="tracker", hosts=[host])


@pytest.mark.parametrize("days", [0, -1, 1e9, float("nan")])
def test_times_that_are_none(root: Path, days: float) -> None:
    with pytest.raises(UsageError):
        ca.issue(root, "days", role="agent", days=days)


def test_no_ca_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="p2pcache ca init"):
        ca.issue(tmp_path, "a", role="agent")


def test_a_key_of_another_ca_signs_nothing(root: Path, tmp_path: Path) -> None:
    ca.init(tmp_path / "other", cluster="other")
    (tmp_path / "other/ca.pem").write_bytes((root / "ca.pem").read_bytes())
    with pytest.raises(UsageError, match="doesn't belong"):
        ca.issue(tmp_path / "other", "a", role="agent")


# -- what a daemon takes -----------------------------------------------------------------------------


def test_a_key_that_others_could_read_signs_nothing(tmp_path: Path) -> None:
    """Whoever copied it makes members: that is noticed, and not used as if nothing were wrong."""
    ca.init(tmp_path / "ca", cluster="x")
    (tmp_path / "ca" / "ca.key").chmod(0o644)
    with pytest.raises(NotAllowed, match="chmod 600"):
        ca.issue(tmp_path / "ca", "node-1", role="agent")


def test_all_three_settings_or_none(root: Path, agent: ca.Issued) -> None:
    assert tls.open_tls(Files("", "", ""), "agent") is None
    with pytest.raises(UsageError, match="--tls-key is missing"):
        tls.open_tls(Files(str(agent.cert), "", str(root / "ca.pem")), "agent")


def test_a_certificate_serves_in_one_role_only(root: Path, agent: ca.Issued) -> None:
    with pytest.raises(NotAllowed, match=r"agent 'node-1'.*tracker"):
        tls.load(*files(agent, root), "tracker")
    tracker = ca.issue(root, "the-tracker", role="tracker")
    with pytest.raises(NotAllowed):
        tls.load(*files(tracker, root), "agent")


def test_a_foreign_certificate_is_refused(agent: ca.Issued, tmp_path: Path) -> None:
    ca.init(tmp_path / "other", cluster="other")
    with pytest.raises(NotAllowed, match=r"not good for the CA.*p2pcache ca issue"):
        tls.load(*files(agent, tmp_path / "other"), "agent")


def test_an_expired_certificate_is_refused(root: Path, tmp_path: Path) -> None:
    made = ca.issue(root, "old", role="agent", days=1 / 86400, out=tmp_path)
    time.sleep(2)
    with pytest.raises(NotAllowed, match="expired"):
        tls.load(*files(made, root), "agent")


def test_an_open_key_is_refused(root: Path, tmp_path: Path) -> None:
    made = ca.issue(root, "leaky", role="agent", out=tmp_path)
    made.key.chmod(0o644)
    with pytest.raises(NotAllowed, match="chmod 600"):
        tls.load(*files(made, root), "agent")


def test_wrong_files_are_refused(root: Path, agent: ca.Issued, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no PEM")
    junk.chmod(0o600)
    other = ca.issue(root, "other", role="agent", out=tmp_path)
    cert, key, authority = files(agent, root)
    for names in ((str(junk), key, authority), (cert, str(junk), authority),
                  (cert, key, str(junk)), (cert, str(other.key), authority)):  # fmt: skip
        with pytest.raises(UsageError, match=r"not .* in PEM form"):
            tls.load(*names, "agent")
    for names in ((str(tmp_path / "none"), key, authority), (cert, str(tmp_path / "none"), authority),
                  (cert, key, str(tmp_path / "none"))):  # fmt: skip
        with pytest.raises(NotAllowed, match="No such file"):
            tls.load(*names, "agent")


def test_an_encrypted_key_is_refused_without_asking_the_terminal(
    root: Path, agent: ca.Issued, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(agent.key.read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))
    )
    locked.chmod(0o600)
    with pytest.raises(UsageError):
        tls.load(str(agent.cert), str(locked), str(root / "ca.pem"), "agent")


# -- reload ------------------------------------------------------------------------------------------


async def test_new_files_are_noticed_and_broken_ones_change_nothing(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ca.issue(root, "n", role="agent", days=4, out=tmp_path / "use")
    live = tls.Tls(files(first, root), "agent")
    assert live.warnings() == [], "a short certificate isn't about to end all its life"
    before, later = live.now, time.time() + 3.25 * 86400
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: later)
        assert "ends in" in live.warnings()[0]
        await live.watch()
    assert live.now is before
    assert "ends in 0.7 days" in caplog.text or "ends in 0.8 days" in caplog.text

    renewed = ca.issue(root, "n", role="agent", days=90, out=tmp_path / "new")
    renewed.cert.rename(first.cert)  # half a renewal: certificate and key don't fit
    await live.watch()
    assert live.now is before
    assert "new certificate is not in use" in live.warnings()[0]
    renewed.key.rename(first.key)
    await live.watch()
    assert live.warnings() == []
    assert live.expires_at > before.expires_at + 80 * 86400

    another = ca.issue(root, "m", role="agent", out=tmp_path / "other")
    another.cert.rename(first.cert)
    another.key.rename(first.key)
    live.reload()
    assert "restart to become another" in live.warnings()[0]
    assert live.member.name == "n"


def test_a_server_context_gives_each_connection_the_newest(root: Path, tmp_path: Path) -> None:
    first = ca.issue(root, "srv", role="tracker", days=3, out=tmp_path / "use")
    live = tls.Tls(files(first, root), "tracker")
    client = tls._bare(str(root / "ca.pem"))
    old = tls._rehearse(live.visitors, client)["serialNumber"]
    renewed = ca.issue(root, "srv", role="tracker", out=tmp_path / "new")
    renewed.cert.replace(first.cert)
    renewed.key.replace(first.key)
    live.reload()
    assert tls._rehearse(live.visitors, client)["serialNumber"] != old


def test_every_other_sides_no_is_explained() -> None:
    error = ssl.SSLError(1, "[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca")
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    assert tls.explain(error) == "it doesn't know the CA of our certificate"
    assert tls.explain(ssl.SSLError("odd"))


def test_a_certificate_of_another_time_points_at_the_clocks(root: Path) -> None:
    late = ca.issue(root, "late", role="agent", days=1 / 86400)
    context = tls._context(
        ssl.PROTOCOL_TLS_SERVER, str(late.cert), str(late.key), str(root / "ca.pem")
    )
    context.verify_mode = ssl.CERT_NONE
    time.sleep(2)
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        tls._rehearse(context, tls._bare(str(root / "ca.pem")))
    assert tls.explain(caught.value).endswith("expired; look at the clocks of both")
