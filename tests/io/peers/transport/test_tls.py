"""Peer connections in mTLS mode: all that works in clear works there too, and strangers don't get in."""

import asyncio
import inspect
import re
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.core.swarm.events import Outcome
from p2pcache.io.peers.protocol.limits import PeerLimits
from p2pcache.io.peers.transport.secure import Secure
from p2pcache.io.security import ca, tls
from p2pcache.io.security.cluster_key import NO_KEY
from p2pcache.io.security.tls import Tls
from tests.certs import Authority, tapped
from tests.io.peers import kit, pairs, test_net, test_orderly_end, test_refusals
from tests.io.peers.kit import QUICK, Model, Node, make_model, node

Scenario = Callable[[], Coroutine[Any, Any, None]]
SCENARIOS: list[Scenario] = [
    test
    for module in (test_net, test_refusals, test_orderly_end)
    for name, test in vars(module).items()
    if name.startswith("test_")
    and inspect.iscoroutinefunction(test)
    and not inspect.signature(test).parameters
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("foreign"))


@pytest.fixture(scope="module")
def anybody(authority: Authority) -> Tls:
    return authority.tls("anybody")


@pytest.fixture
def tls_everywhere(anybody: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenarios number their nodes as they like, so here every number is everybody's."""
    monkeypatch.setattr(kit, "TLS", anybody)
    monkeypatch.setattr(Member, "owns", lambda self, node: True)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[test.__name__ for test in SCENARIOS])
@pytest.mark.usefixtures("tls_everywhere")
async def test_scenarios_of_plain_tcp_work_in_tls(scenario: Scenario) -> None:
    await scenario()


@pytest.mark.usefixtures("tls_everywhere")
def test_on_uvloop_too() -> None:
    test_net.test_it_works_on_uvloop_too()
    test_orderly_end.test_it_does_so_on_uvloop_too()


def number(tls: Tls) -> int:
    return tls.member.node(7)


async def fails(client: Node, model: Model, server_number: int, address: str) -> None:
    port = client.swarm(model)
    client.net.dial(model.layout.digest, server_number, address)
    await port.heard("failed", server_number)


MODEL = make_model([300_000, 5, 262_144])


async def test_without_a_cluster_key_the_certificate_is_enough(authority: Authority) -> None:
    a, b = authority.tls("a"), authority.tls("b")
    async with (
        node(number(a), tls=a, secret=NO_KEY) as server,
        node(number(b), tls=b, secret=NO_KEY) as client,
    ):
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await pairs.dialled(client, port, server, bitset.full(MODEL.layout.run_count))
        await test_net.fetch(client, port, server)
        test_net.check(MODEL, port)


async def test_nothing_of_a_model_passes_in_clear(authority: Authority) -> None:
    marker = b"these weights are a secret of ours "
    model = _model_of(marker * 20_000)
    for secret_mode in (True, False):  # in clear the tap must find it: else this proves nothing
        a, b = authority.tls("a"), authority.tls("b")
        async with (
            node(number(a), tls=a if secret_mode else None) as server,
            node(number(b), tls=b if secret_mode else None) as client,
            tapped(*server.where) as tap,
        ):
            server.swarm(model, full=True)
            port = client.swarm(model)
            client.net.dial(model.layout.digest, server.number, tap.address)
            await port.heard("joined", server.number, 1)
            await test_net.fetch(client, port, server)
            assert len(tap.seen) > len(marker) * 20_000
            assert (marker in tap.seen) is not secret_mode
            assert (bytes.fromhex(model.layout.digest) in tap.seen) is not secret_mode


def _model_of(data: bytes) -> Model:
    from blake3 import blake3

    from p2pcache.core.format.manifest import Chunk, make_file, make_manifest

    file = make_file("weights", [Chunk(len(data), blake3(data).digest())])
    return Model(Layout(make_manifest([file])), [data])


# -- who doesn't get in ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "advice"), [(18, ""), (20, "; if it is a member, tls_ca here lacks its CA")]
)
def test_a_stranger_that_signed_itself_brings_no_advice_to_trust_it(code: int, advice: str) -> None:
    error = ssl.SSLCertVerificationError(1, "verify failed")
    error.verify_code, error.verify_message = code, "why"
    assert tls.explain(error) == f"its certificate is not good: why{advice}"


async def test_a_foreign_certificate(
    authority: Authority, foreign: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    a, b = authority.tls("a"), foreign.tls("b")
    async with node(number(a), tls=a) as server, node(number(b), tls=b) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)  # we don't trust it
        assert "certificate is not good" in caplog.text
    # It trusts us, and shows a certificate that we don't trust.
    mixed = authority.files("x")._replace(tls_cert=foreign.files("x").tls_cert)
    files = foreign.files("b")
    fraud = Tls(files, "agent")
    fraud.now.client.load_verify_locations(cafile=mixed.tls_ca)
    caplog.clear()
    async with node(number(a), tls=a) as server, node(number(fraud), tls=fraud) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)
        why = r"refused a peer from 127.0.0.1: its certificate is not good: .*; if it is a member, tls_ca"
        assert re.search(why, caplog.text)
        assert "it doesn't know the CA of our certificate" in caplog.text
        assert server.net.stats.refused == 1


async def test_an_expired_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    a, old, files = authority.tls("a"), authority.tls("old"), authority.expired("old")
    server_side, client_side = (  # as if it had been loaded while it was good
        tls._context(way, files.tls_cert, files.tls_key, files.tls_ca)
        for way in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    old._loaded = old.now._replace(server=server_side, client=client_side)
    async with node(number(a), tls=a) as server, node(number(old), tls=old) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)
        assert (
            "refused a peer from 127.0.0.1: its certificate is not good: certificate has expired"
            in caplog.text
        )
        assert "our certificate has expired" in caplog.text


async def test_no_certificate(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    a, b = authority.tls("a"), authority.tls("b")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname = False
    bare.load_verify_locations(cafile=str(authority.ca))
    b._loaded = b.now._replace(client=bare)
    async with node(number(a), tls=a) as server, node(number(b), tls=b) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)
        assert "it demands a certificate; set --tls-cert" in caplog.text


async def test_a_peer_without_tls(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    a = authority.tls("a")
    async with node(number(a), tls=a, limits=QUICK) as server, node(2, limits=QUICK) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)
        assert "took too long" in caplog.text
        client.swarm(MODEL, full=True)
        caplog.clear()
        await fails(server, make_model([1], seed=9), 2, client.address)
        assert "it doesn't speak TLS" in caplog.text


async def test_a_tracker_is_no_peer(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    # The CA of an operator's own may well allow a tracker's certificate to dial.
    monkeypatch.setitem(ca._USES, "tracker", ca._USES["agent"])
    files = authority.files("t", "tracker")
    monkeypatch.undo()
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialling.check_hostname = False
    dialling.load_verify_locations(cafile=files.tls_ca)
    dialling.load_cert_chain(files.tls_cert, files.tls_key)
    a, b = authority.tls("a"), authority.tls("b")
    b._loaded = b.now._replace(client=dialling)
    async with node(number(a), tls=a) as server, node(number(b), tls=b) as client:
        server.swarm(MODEL, full=True)
        await fails(client, MODEL, number(a), server.address)
        text = "it shows the certificate of tracker 't', where agents belong"
        assert f"refused a peer from 127.0.0.1: {text}" in caplog.text
        assert f"it says: refused: {text}" in caplog.text


async def test_a_member_cant_speak_for_another_node(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    a, victim, liar = (authority.tls(name) for name in ("a", "victim", "liar"))
    async with node(number(a), tls=a) as server, node(number(victim), tls=victim) as honest:
        server.swarm(MODEL, full=True)
        port = honest.swarm(MODEL)
        await pairs.dialled(honest, port, server, bitset.full(MODEL.layout.run_count))
        async with node(number(victim), tls=liar) as client:  # with the id of the victim
            await fails(client, MODEL, number(a), server.address)
        assert "is not one of agent 'liar'" in caplog.text
        await test_net.fetch(honest, port, server)  # neither replaced nor banned
        assert ("left", number(a)) not in port.told
    async with node(number(victim), tls=liar) as server:  # nor answers for it
        server.swarm(MODEL, full=True)
        async with node(number(a), tls=a) as client:
            await fails(client, MODEL, number(victim), server.address)
            assert "another node answers at its address" in caplog.text


# -- hostile bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 9000, b"\0" * 64]
)
async def test_garbage_is_dropped(authority: Authority, garbage: bytes) -> None:
    a = authority.tls("a")
    async with node(number(a), tls=a, limits=QUICK) as server:
        reader, writer = await asyncio.open_connection(*server.where)
        writer.write(garbage)
        async with asyncio.timeout(30):
            while await reader.read(1000):
                pass
        writer.close()
        assert server.net.stats.refused == 1


async def test_a_port_scan_is_no_refusal(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A kubelet's probe, a load balancer's, the tracker's: the log of a node must not fill with them."""
    caplog.set_level("INFO")
    a = authority.tls("a")
    async with node(number(a), tls=a, limits=QUICK) as server:
        for linger in (False, True):
            with socket.create_connection(server.where) as probe:
                if linger:  # ends in a reset
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.sleep(0.2)
        assert "refused" not in caplog.text
        assert server.net.stats.refused == 0


async def test_a_flood_of_half_open_connections_is_bounded(authority: Authority) -> None:
    a, b = authority.tls("a"), authority.tls("b")
    limits = PeerLimits(half_open=8, handshake_s=5.0)
    async with node(number(a), tls=a, limits=limits) as server, node(number(b), tls=b) as client:
        flood = [socket.create_connection(server.where) for _ in range(40)]
        await asyncio.sleep(0.1)
        acceptor = server.net._parts.listener._tls
        assert acceptor is not None
        assert len(acceptor._handshakes) <= 8
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        await pairs.dialled(client, port, server, bitset.full(MODEL.layout.run_count))
        for sock in flood:
            sock.close()


async def test_records_cut_into_bytes_come_through(authority: Authority) -> None:
    """The network may cut anywhere: nothing may wait inside OpenSSL for bytes that never come."""
    left, right = socket.socketpair()
    for sock in (left, right):
        sock.setblocking(False)
    a = authority.tls("a")
    server = Secure(left, a.now.server, server_side=True)
    client = Secure(right, a.now.client, server_side=False)
    over = [False, False]
    while not all(over):
        for at, end in enumerate((client, server)):
            over[at] = over[at] or end.shake()
            assert end.flush()
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    server.sock, client.sock = ours, right
    sent = bytes(range(256)) * 200
    assert server.send(sent[:16], more=True) == 16
    done = 16
    while done < len(sent):
        done += server.send(sent[done : done + 20_000])
    wire = theirs.recv(1 << 20)
    view, got = memoryview(bytearray(1 << 20)), b""
    for at in range(0, len(wire), 777):
        left.send(wire[at : at + 777])
        try:
            count = client.receive(view, 1)
        except BlockingIOError:
            continue
        got += bytes(view[:count])
    assert got == sent
    assert not client._tls.pending()
    for sock in (left, right, ours, theirs):
        sock.close()


async def test_a_flipped_bit_ends_the_connection_without_a_violation(authority: Authority) -> None:
    a, b = authority.tls("a"), authority.tls("b")
    async with node(number(a), tls=a) as server, node(number(b), tls=b) as client:
        server.swarm(MODEL, full=True)
        port = client.swarm(MODEL)
        there = await asyncio.open_connection(*server.where)
        flips = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def back() -> None:
                while data := await there[0].read(1 << 16):
                    if flips.is_set():
                        data = data[:-1] + bytes([data[-1] ^ 1])
                    writer.write(data)
                writer.close()

            task = asyncio.get_running_loop().create_task(back())
            while data := await reader.read(1 << 16):
                there[1].write(data)
            await task

        relay = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = "{}:{}".format(*relay.sockets[0].getsockname())
        client.net.dial(MODEL.layout.digest, number(a), address)
        await port.heard("joined", number(a), bitset.full(MODEL.layout.run_count))
        flips.set()
        client.net.request(MODEL.layout.digest, 1, number(a), 0)
        assert await port.end(1) is Outcome.LOST
        assert client.net.stats.mismatches == client.net.stats.violations == 0
        there[1].close()
        relay.close()


async def test_a_new_certificate_in_the_middle_of_a_transfer(
    authority: Authority, tmp_path: Path
) -> None:
    model = make_model([400_000] * 6)
    files = authority.files("a", days=2)
    a, b = Tls(files, "agent"), authority.tls("b")
    async with node(number(a), tls=a, up=2_000_000) as server, node(number(b), tls=b) as client:
        server.swarm(model, full=True)
        port = client.swarm(model)
        await pairs.dialled(client, port, server, bitset.full(model.layout.run_count))
        fetching = asyncio.get_running_loop().create_task(test_net.fetch(client, port, server))
        await port.until(lambda: port.ends)
        renewed = authority.files("a", days=90)
        Path(renewed.tls_cert).replace(files.tls_cert)
        Path(renewed.tls_key).replace(files.tls_key)
        a.reload()
        assert a.warnings() == []
        assert not fetching.done()
        await fetching
        test_net.check(model, port)
        c = authority.tls("c")
        async with node(number(c), tls=c) as newcomer:
            late = newcomer.swarm(model)
            await pairs.dialled(newcomer, late, server, bitset.full(model.layout.run_count))
