"""The tracker in mTLS mode: who becomes a member, under which node id, and who may look."""

import asyncio
import contextlib
import ssl
from pathlib import Path

import aiohttp
import pytest

from p2pcache.core.protocol import messages as m
from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.security import tls as security_tls
from p2pcache.io.security.tls import Tls
from tests.certs import Authority, Files
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import X, tracker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.files("the-tracker", "tracker")


def agent(tls: Tls, own: int = 7) -> FakeAgent:
    return FakeAgent(tls.member.node(own))


def visitor(authority: Authority, *, cert: Files | None = None) -> ssl.SSLContext:
    """What curl or Prometheus would use: it checks the host, and may show a certificate."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    if cert is not None:
        context.load_cert_chain(cert.tls_cert, cert.tls_key)
    return context


async def test_members_show_certificates(authority: Authority, files: Files) -> None:
    a, b = authority.tls("a"), authority.tls("b")
    async with tracker(quick=True, **files._asdict()) as app:
        async with agent(a).member(app.address, tls=a), agent(b).member(app.address, tls=b) as two:
            await two.enter(X, 4)
            await two.wait_for(m.Swarm)
            assert len(app.members) == 2


async def test_one_certificate_serves_several_caches(authority: Authority, files: Files) -> None:
    a = authority.tls("a")
    async with tracker(**files._asdict()) as app:
        async with (
            agent(a, 1).member(app.address, tls=a),
            agent(a, 2).member(app.address, tls=a),
        ):
            assert len(app.members) == 2


async def test_a_certificate_speaks_for_its_own_nodes_only(
    authority: Authority, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    victim, liar = authority.tls("victim"), authority.tls("liar")
    async with tracker(**files._asdict()) as app:
        async with agent(victim).member(app.address, tls=victim) as honest:
            fraud = FakeAgent(honest.node)
            with pytest.raises(TypeError, match="Received message 8"):  # a close frame, no WELCOME
                async with fraud.member(app.address, tls=liar):
                    pass
            assert "is not one of agent 'liar'" in caplog.text
            await honest.enter(X, 4)  # still there, not replaced
            await honest.wait_for(m.Swarm)
            assert list(app.tracking.registry.nodes) == [honest.node]
            renewed = authority.tls("victim")  # another certificate of the same name is the same
            async with agent(victim).member(app.address, tls=renewed):
                assert await honest.wait_closed() == 1000


async def test_without_a_certificate_only_views_are_allowed(
    authority: Authority, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    context = visitor(authority)
    async with tracker(**files._asdict()) as app, aiohttp.ClientSession() as http:
        for path in ("/healthz", "/metrics", "/v1/nodes"):
            async with http.get(f"https://{app.address}{path}", ssl=context) as answer:
                assert answer.status == 200
        async with http.get(f"https://{app.address}/metrics", ssl=context) as answer:
            assert "p2pcache_tracker_certificate_expiry_timestamp_seconds 1" in await answer.text()
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.ws_connect(f"https://{app.address}/v1/member", ssl=context)
        assert caught.value.status == 403
        assert "refused a member from 127.0.0.1: members show a certificate here" in caplog.text
        assert app.members.log.refused == 1


async def test_strangers_and_the_expired(
    authority: Authority, files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = Authority(tmp_path / "foreign").files("f")
    old = authority.expired("old")
    async with tracker(**files._asdict()) as app, aiohttp.ClientSession() as http:
        url = f"https://{app.address}/v1/member"
        for cert in (foreign, old):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await http.ws_connect(url, ssl=visitor(authority, cert=cert))
        async with agent(a := authority.tls("a")).member(app.address, tls=a):
            assert len(app.members) == 1
        assert (
            "refused a TLS client: its certificate is not good: certificate has expired"
            in caplog.text
        )


async def test_plain_http_gets_no_answer(files: Files) -> None:
    async with tracker(**files._asdict()) as app, aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http://{app.address}/healthz")


async def test_new_certificates_are_used_at_once(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security_tls, "WARN_SHARE", 1.0)
    files = authority.files("t", "tracker", days=2)
    context = visitor(authority)
    async with tracker(**files._asdict()) as app, aiohttp.ClientSession() as http:

        async def serial() -> str:
            _, writer = await asyncio.open_connection(*app.address.split(":"), ssl=context)
            shown = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            await writer.wait_closed()
            return str(shown)

        async def warnings() -> list[str]:
            async with http.get(f"https://{app.address}/readyz", ssl=context) as answer:
                assert answer.status == (503 if app.catalog.trouble else 200)
                found: list[str] = (await answer.json())["warnings"]
                return found

        assert "ends in 2.0 days" in (await warnings())[0]
        a = authority.tls("a")
        async with agent(a).member(app.address, tls=a) as member:
            before = await serial()
            Path(files.tls_cert).write_text("broken")
            app.reload()
            assert await serial() == before
            assert "the new certificate is not in use" in (await warnings())[0]
            renewed = authority.files("t", "tracker")
            Path(renewed.tls_cert).replace(files.tls_cert)
            Path(renewed.tls_key).replace(files.tls_key)
            app.reload()
            assert await serial() != before
            assert await warnings() == []
            await member.enter(X, 4)  # who was a member has not noticed
            await member.wait_for(m.Swarm)


async def test_the_wrong_role_or_half_the_settings_do_not_start(
    authority: Authority, files: Files
) -> None:
    with pytest.raises(NotAllowed, match="this daemon is a tracker"):
        async with tracker(**authority.files("a")._asdict()):
            pass
    with pytest.raises(UsageError, match="--tls-ca is missing"):
        async with tracker(tls_cert=files.tls_cert, tls_key=files.tls_key):
            pass


async def test_a_certificate_is_enough_to_listen_for_others(files: Files) -> None:
    async with tracker(listen="0.0.0.0:0", **files._asdict()) as app:
        assert app.address.startswith("0.0.0.0:")


async def test_all_node_ids_of_one_certificate_are_one_witness(
    authority: Authority, files: Files
) -> None:
    """Two of them say that storage's bytes are wrong, and the honest node reads on."""
    evil, good = authority.tls("evil"), authority.tls("good")
    liars = [agent(evil, own) for own in (5, 6)]
    honest = agent(good)
    async with tracker(**files._asdict()) as app:
        async with contextlib.AsyncExitStack() as stack:
            for liar in liars:
                liar.read_s = -1.0
                await stack.enter_async_context(liar.member(app.address, tls=evil))
                await liar.enter(X, 1)
                grant = await liar.wait_for(m.Grant)
                await liar.send(m.LeaseReport(X, grant.epoch, mismatched=grant.runs))
            await stack.enter_async_context(honest.member(app.address, tls=good))
            await honest.enter(X, 1)
            assert (await honest.wait_for(m.Grant)).runs == (0,)
            assert app.tracking.swarms[X].doubts.stop is None
            assert not [mail for mail in honest.mail if isinstance(mail, m.Stop)]
