"""Refs and manifests through a member connection, from real directories."""

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pcache.core.format.tag_record import TagRecord
from p2pcache.core.protocol import messages as m
from p2pcache.errors import (
    Conflict,
    IntegrityError,
    NotAllowed,
    NotFound,
    OriginUnavailable,
    P2PCacheError,
    Unreachable,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io.origins import Origin, Retrying, open_origin
from p2pcache.io.origins.repo import OriginRepo, manifest_key, tag_key
from p2pcache.io.security.tls import Tls
from p2pcache.tracker import catalog
from p2pcache.tracker.app import TrackerApp
from tests.certs import Authority
from tests.tracker.fake_agent import FakeAgent
from tests.tracker.kit import REF, get, publish, tracker


def record(answer: m.Answer) -> TagRecord:
    return msgspec.json.decode(answer.data, type=TagRecord)


def _fail_with(error: P2PCacheError) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


async def probe_anew(app: TrackerApp) -> None:
    """Probe, not with what a probe that is under way finds."""
    for _ in range(2):
        await app.catalog.probe()


async def test_resolve_and_manifest(tmp_path: Path) -> None:
    digest, encoded = publish(tmp_path)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        assert (await agent.wait_for(m.Settled)).origin == f"file://{tmp_path}"
        assert record(await agent.ask("resolve", str(REF))) == TagRecord(digest, 1)
        answer = await agent.ask("manifest", digest)
        assert (answer.data, answer.total) == (encoded, len(encoded))


async def test_a_large_manifest_comes_in_parts(tmp_path: Path) -> None:
    digest, encoded = publish(tmp_path, files=20_000)
    assert len(encoded) > 2 * m.MANIFEST_PART_BYTES
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        data = b""
        while len(data) < len(encoded):
            answer = await agent.ask("manifest", digest, len(data))
            assert answer.total == len(encoded)
            data += answer.data
        assert data == encoded
        assert app.catalog.reads["manifest"] == 1
        with pytest.raises(UsageError):
            await agent.ask("manifest", digest, len(encoded))
        with pytest.raises(UsageError):
            await agent.ask("manifest", digest, -1)


@pytest.mark.slow
async def test_a_thousand_resolves_cost_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, _ = publish(tmp_path)
    inside = OriginRepo.get_tag

    def slow(self: OriginRepo, ref: Ref) -> TagRecord:
        time.sleep(0.1)
        return inside(self, ref)

    monkeypatch.setattr(OriginRepo, "get_tag", slow)
    async with tracker(tmp_path) as app:
        records = await asyncio.gather(*(app.catalog.tag(REF) for _ in range(1000)))
        assert {r.digest for r in records} == {digest}
        manifests = await asyncio.gather(*(app.catalog.manifest(digest) for _ in range(1000)))
        assert len(set(manifests)) == 1
        assert app.catalog.reads == {"tag": 1, "manifest": 1}


async def test_a_tag_is_at_most_two_seconds_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = publish(tmp_path)
    monkeypatch.setattr(catalog, "TAG_TTL_S", 0.1)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        assert record(await agent.ask("resolve", str(REF))).digest == first
        second, _ = publish(tmp_path, files=2)
        await asyncio.sleep(0.12)
        assert record(await agent.ask("resolve", str(REF))).digest == second


async def test_frequent_questions_never_wait_for_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = publish(tmp_path)
    monkeypatch.setattr(catalog, "TAG_TTL_S", 60.0)
    monkeypatch.setattr(catalog, "FRESH", 0.0)
    async with tracker(tmp_path) as app:
        assert (await app.catalog.tag(REF)).digest == first
        inside, go = OriginRepo.get_tag, threading.Event()

        def slow(self: OriginRepo, ref: Ref) -> TagRecord:
            go.wait(60)
            return inside(self, ref)

        monkeypatch.setattr(OriginRepo, "get_tag", slow)
        second, _ = publish(tmp_path, files=2)
        for _ in range(3):
            assert (await app.catalog.tag(REF)).digest == first  # one read is under way
        assert app.catalog.reads["tag"] <= 2
        go.set()
        while (await app.catalog.tag(REF)).digest != second:
            await asyncio.sleep(0.01)


async def test_moved_forgets_at_once(tmp_path: Path) -> None:
    publish(tmp_path)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        await agent.ask("resolve", str(REF))
        second, _ = publish(tmp_path, files=2)
        await agent.ask("moved", str(REF))
        assert record(await agent.ask("resolve", str(REF))).digest == second


async def test_moved_also_overtakes_a_read_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path)
    inside, go, begun = OriginRepo.get_tag, threading.Event(), threading.Event()

    def slow(self: OriginRepo, ref: Ref) -> TagRecord:
        found = inside(self, ref)
        begun.set()
        go.wait(60)
        return found

    monkeypatch.setattr(OriginRepo, "get_tag", slow)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        early = asyncio.get_running_loop().create_task(app.catalog.tag(REF))
        await asyncio.to_thread(begun.wait, 30)
        second, _ = publish(tmp_path, files=2)
        await agent.ask("moved", str(REF))
        go.set()
        await early
        assert record(await agent.ask("resolve", str(REF))).digest == second


async def test_missing_tags_and_manifests_are_not_found(tmp_path: Path) -> None:
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        for _ in range(3):
            with pytest.raises(NotFound):
                await agent.ask("resolve", "no/such:thing")
        assert app.catalog.reads["tag"] == 1
        with pytest.raises(NotFound):
            await agent.ask("manifest", "ab" * 32)
        for text in ("", "x" * 64, "../../etc/passwd"):
            with pytest.raises(UsageError):
                await agent.ask("manifest", text)
        for text in ("", "no model", "a" * 3000):
            with pytest.raises(UsageError):
                await agent.ask("resolve", text)
        with pytest.raises(UsageError):
            await agent.ask("weather")
        assert (await get(app.address, "/readyz"))[0] == 200


async def test_without_an_origin() -> None:
    async with tracker() as app, FakeAgent(1).member(app.address) as agent:
        with pytest.raises(Unreachable, match="--origin"):
            await agent.ask("resolve", str(REF))


async def test_a_lost_origin_is_an_error_within_seconds_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gives_up = threading.Event()

    def hang(self: OriginRepo, ref: Ref) -> TagRecord:
        gives_up.wait(60)
        raise OriginUnavailable("nobody there")

    monkeypatch.setattr(OriginRepo, "get_tag", hang)
    monkeypatch.setattr(catalog, "TAG_WAIT_S", 0.1)
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        with pytest.raises(OriginUnavailable):
            await agent.ask("resolve", str(REF))
        assert not gives_up.is_set()  # nobody waited for storage to give up
        gives_up.set()
        async with asyncio.timeout(30):
            while (said := await get(app.address, "/readyz"))[0] == 200:
                await asyncio.sleep(0.02)
        status, body = said
        assert status == 503
        assert "nobody there" not in str(body)  # anybody may ask: our own words only
        assert "storage doesn't answer" in body["reasons"][0]


async def test_while_storage_is_away_members_wait_shortly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(OriginRepo, "get_tag", lambda *_: answers.wait(60))
    monkeypatch.setattr(catalog, "TAG_WAIT_S", 60.0)
    monkeypatch.setattr(catalog, "TROUBLE_WAIT_S", 0.05)
    monkeypatch.setattr(OriginRepo, "prove", _fail_with(OriginUnavailable("503")))
    async with tracker(tmp_path) as app:
        await app.catalog.probe()
        async with asyncio.timeout(30):
            with pytest.raises(OriginUnavailable):
                await app.catalog.tag(REF)
        answers.set()


async def test_one_corrupt_manifest_is_not_a_lost_origin(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path)
    (path,) = tmp_path.rglob(f"manifests/{digest}")
    path.chmod(0o644)
    path.write_bytes(b"{}")
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        with pytest.raises(IntegrityError):
            await agent.ask("manifest", digest)
        assert (await get(app.address, "/readyz"))[0] == 200


async def test_one_refused_object_is_no_refused_origin(tmp_path: Path) -> None:
    """An archived object, a 403 of one key: the tracker was not ready up to 5 s each time that somebody asked."""
    digest, _ = publish(tmp_path)
    linked = "a" * 64  # a link is refused, as after a bad copy of a directory
    (tmp_path / manifest_key(linked)).symlink_to(tmp_path / manifest_key(digest))
    (tmp_path / tag_key(Ref.parse("team/model:v2"))).symlink_to(tmp_path / tag_key(REF))
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        for what, text in (("manifest", linked), ("resolve", "team/model:v2")):
            with pytest.raises(NotAllowed):
                await agent.ask(what, text)
            assert (await get(app.address, "/readyz"))[0] == 200


async def test_a_good_read_does_not_end_what_the_probe_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 without s3:ListBucket: the probe is refused, and tags are read. The tracker was ready and not by turns."""
    publish(tmp_path)
    with monkeypatch.context() as refused:
        refused.setattr(OriginRepo, "prove", _fail_with(NotAllowed("s3:ListBucket")))
        async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
            await probe_anew(app)
            assert record(await agent.ask("resolve", str(REF))).generation == 1
            assert (await get(app.address, "/readyz"))[0] == 503
            refused.undo()
            await probe_anew(app)
            assert (await get(app.address, "/readyz"))[0] == 200


async def test_a_good_read_ends_what_a_read_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path)
    async with tracker(tmp_path) as app:
        await probe_anew(app)
        monkeypatch.setattr(OriginRepo, "get_manifest", _fail_with(OriginUnavailable("503")))
        with pytest.raises(OriginUnavailable):
            await app.catalog.manifest("a" * 64)
        assert app.catalog.trouble is not None
        await app.catalog.tag(REF)
        assert app.catalog.trouble is None


async def test_an_origin_that_appears_later(tmp_path: Path) -> None:
    root = tmp_path / "mounted-later"
    async with tracker(root) as app, FakeAgent(1).member(app.address) as agent:
        status, body = await get(app.address, "/readyz")
        assert status == 503
        assert "directory isn't there" in body["reasons"][0]
        root.mkdir()
        digest, _ = publish(root)
        await probe_anew(app)
        assert (await get(app.address, "/readyz"))[0] == 200
        assert record(await agent.ask("resolve", str(REF))).digest == digest
        shutil.rmtree(root)
        await probe_anew(app)
        assert (await get(app.address, "/readyz"))[0] == 503  # unmounted, or a bucket deleted


async def test_no_member_moves_tags_where_storage_can_tell_who_may(tmp_path: Path) -> None:
    digest, _ = publish(tmp_path)
    publish(tmp_path, files=2)
    wish = json.dumps({"ref": str(REF), "digest": digest})
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:
        with pytest.raises(NotAllowed, match="credentials"):
            await agent.ask("tag_put", wish)
        assert record(await agent.ask("resolve", str(REF))).generation == 2


async def test_tag_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, _ = publish(tmp_path)
    second, _ = publish(tmp_path, files=2)
    monkeypatch.setattr(Retrying, "conditional_put", False)
    other = "team/other:v1"
    async with tracker(tmp_path) as app, FakeAgent(1).member(app.address) as agent:

        async def put(**wish: object) -> TagRecord:
            return record(await agent.ask("tag_put", json.dumps({"ref": other, **wish})))

        assert await put(digest=digest, expect_generation=0) == TagRecord(digest, 1)
        assert record(await agent.ask("resolve", other)).generation == 1
        assert await put(digest=second) == TagRecord(second, 2, digest)
        with pytest.raises(Conflict):
            await put(digest=digest, expect_generation=1)
        with pytest.raises(NotFound):
            await put(digest="ab" * 32)
        for bad in ({"digest": "x"}, {}, {"digest": digest, "more": 1}):
            with pytest.raises(UsageError):
                await put(**bad)


async def test_only_a_pushers_certificate_moves_a_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca")
    digest, _ = publish(tmp_path)
    publish(tmp_path, files=2)
    monkeypatch.setattr(Retrying, "conditional_put", False)
    wish = json.dumps({"ref": str(REF), "digest": digest})
    files = authority.files("hub", "tracker")
    async with tracker(tmp_path, **files._asdict()) as app:
        own = authority.tls("n1")
        async with FakeAgent(own.member.node(5)).member(app.address, tls=own) as agent:
            with pytest.raises(NotAllowed, match="--role pusher"):
                await agent.ask("tag_put", wish)
            assert record(await agent.ask("resolve", str(REF))).generation == 2
        own = Tls(authority.files("n1", "pusher"), "agent")
        async with FakeAgent(own.member.node(5)).member(app.address, tls=own) as agent:
            assert record(await agent.ask("tag_put", wish)).generation == 3


async def test_manifests_leave_the_cache_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, encoded = publish(tmp_path)
    second, _ = publish(tmp_path, files=2)
    monkeypatch.setattr(catalog, "MANIFEST_CACHE_BYTES", len(encoded) + 10)
    async with tracker(tmp_path) as app:
        for digest in (first, first, second, second, first):
            await app.catalog.manifest(digest)
        assert app.catalog.reads["manifest"] >= 3


async def test_a_tracker_starts_while_its_storage_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share whose server is away holds whoever looks at it, for ever; members need the tracker all the same."""
    digest, _ = publish(tmp_path)
    back = threading.Event()

    def hang(*args: Any, **more: Any) -> Origin:
        back.wait(30)
        return open_origin(*args, **more)

    monkeypatch.setattr(catalog, "open_origin", hang)
    monkeypatch.setattr(catalog, "OPEN_WAIT_S", 0.2)
    began = time.monotonic()
    try:
        async with tracker(tmp_path) as app:
            assert time.monotonic() - began < 10
            assert (await get(app.address, "/healthz"))[0] == 200
            assert (await get(app.address, "/readyz"))[0] == 503
            async with FakeAgent(1).member(app.address) as agent:
                back.set()
                assert record(await agent.ask("resolve", str(REF))).digest == digest
    finally:
        back.set()
