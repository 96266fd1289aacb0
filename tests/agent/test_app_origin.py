"""Storage that refuses our credentials is known before the first pull."""

import asyncio
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.agent.node import origin_opener
from p2pcache.agent.node.origin_opener import Outage
from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError
from p2pcache.ids import Ref
from tests.agent.kit import agent

REFUSAL = b"<Error><Code>InvalidAccessKeyId</Code><Message>no such key</Message></Error>"
ABSENCE = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


class Storage(http.server.BaseHTTPRequestHandler):
    """Refuses until somebody has repaired the credentials."""

    good = False

    def do_HEAD(self) -> None:
        self.send_response(404 if type(self).good else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body = ABSENCE if type(self).good else REFUSAL
        self.send_response(404 if type(self).good else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Storage]]:
    monkeypatch.setattr(Storage, "good", False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Storage)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKOLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    yield Storage
    server.shutdown()
    thread.join()
    server.server_close()


async def test_refused_credentials_are_a_warning_until_they_are_good(
    tmp_path: Path, storage: type[Storage], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(origin_opener, "PROVE_S", 0.01)
    async with agent(tmp_path, origin="s3://models") as app:
        async with asyncio.timeout(30):
            while not app.queries.warnings():
                await asyncio.sleep(0.01)
            assert "InvalidAccessKeyId" in app.queries.warnings()[0]
            assert app.queries.reasons() == []  # what peers have can be had all the same
            storage.good = True
            while app.queries.warnings():
                await asyncio.sleep(0.01)
    said = [r.getMessage() for r in caplog.records if "InvalidAccessKeyId" in r.getMessage()]
    assert len(said) == 1  # once per cause, not once per look


async def mended(storage: type[Storage], caplog: pytest.LogCaptureFixture) -> None:
    """An outage is logged, lasts for many looks, and its end is logged."""
    while "storage fails" not in caplog.text:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    storage.good = True
    while "storage answers again" not in caplog.text:
        await asyncio.sleep(0.01)


async def test_an_outage_is_logged_once_and_so_is_its_end(
    tmp_path: Path, storage: type[Storage], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Reads whose leases go to others end without an error: the logs knew nothing of 40 s of 503."""
    monkeypatch.setattr(origin_opener, "ASK_AGAIN_S", 0.01)
    caplog.set_level("INFO", origin_opener.__name__)
    storage.good = True
    async with agent(tmp_path, origin="s3://models") as app, asyncio.timeout(30):
        repo = app.origin.repo
        assert repo is not None
        await asyncio.sleep(0.2)
        storage.good = False
        with pytest.raises(NotAllowed):
            await asyncio.to_thread(repo.get_tag, Ref.parse("m:v1"))
        await mended(storage, caplog)
    assert caplog.text.count("storage fails: ") == 1


async def test_an_outage_at_the_start_is_logged_once_and_so_is_its_end(
    tmp_path: Path, storage: type[Storage], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for name in ("ASK_AGAIN_S", "PROVE_S"):
        monkeypatch.setattr(origin_opener, name, 0.01)
    caplog.set_level("INFO", origin_opener.__name__)
    async with agent(tmp_path, origin="s3://models"), asyncio.timeout(30):
        await mended(storage, caplog)
    assert caplog.text.count("storage fails: ") == 1


async def test_storage_that_cannot_be_opened_is_logged_once_and_so_is_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was a line each ten seconds, and none when the directory was there at last."""
    for name in ("ASK_AGAIN_S", "RETRY_S"):
        monkeypatch.setattr(origin_opener, name, 0.01)
    caplog.set_level("INFO", origin_opener.__name__)
    folder = tmp_path / "origin"
    async with agent(tmp_path, origin=folder.as_uri()), asyncio.timeout(30):
        await asyncio.sleep(0.3)
        folder.mkdir()
        while "storage answers again" not in caplog.text:
            await asyncio.sleep(0.01)
    said = [r.getMessage() for r in caplog.records if r.name == origin_opener.__name__]
    assert len(said) == 2
    assert str(folder) in said[0]


AWAY, SLOW, REFUSED = OriginUnavailable("503"), OriginUnavailable("slow"), NotAllowed("403")


@pytest.mark.parametrize(("seen", "logged"), [
    ([None, None], []),
    ([AWAY, SLOW, AWAY, None, None, None], ["fails: 503", "again"]),
    ([AWAY, REFUSED, REFUSED, None, None], ["fails: 503", "fails: 403", "again"]),
    ([AWAY, None] * 9, ["fails: 503"]),  # it comes and goes: a line each ten seconds, for ever
    ([AWAY, None, None, AWAY], ["fails: 503", "again", "fails: 503"]),
])  # fmt: skip
def test_an_outage_is_told_by_its_kind_and_over_after_two_good_looks(
    seen: list[P2PCacheError | None], logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", origin_opener.__name__)
    outage = Outage()
    for trouble in seen:
        outage.look(trouble)
    assert [r.getMessage() for r in caplog.records] == [
        f"storage {text}".replace("storage again", "storage answers again") for text in logged
    ]
