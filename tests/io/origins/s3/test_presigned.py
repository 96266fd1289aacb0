"""Ranged reads by a presigned URL: botocore asks first and whenever one is refused, and no URL is ever shown."""

import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.kit.seaweed import Seaweed
from p2pcache.errors import NotAllowed, NotFound, OriginUnavailable
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.s3 import presigned
from p2pcache.io.origins.s3.origin import S3Origin
from tests.io.origins.s3.stub import QUICK, SECRET, Stub, refusal, shown, stub

KEY = "big"
PARTIAL: tuple[int, dict[str, str], bytes] = (206, {}, b"abc")


@pytest.fixture
def keys(clean_env: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    clean_env.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    clean_env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    return clean_env


def read(origin: object, count: int = 1, key: str = KEY) -> bytes:
    found = bytearray(3)
    for _ in range(count):
        with origin.open(key, 5, 3) as body:  # type: ignore[attr-defined]
            assert body.readinto(memoryview(found)) == 3
    return bytes(found)


def by_url(seen: list[tuple[str, str, dict[str, str]]]) -> list[bool]:
    return ["X-Amz-Signature=" in path for _, path, _ in seen]


def test_only_the_first_request_for_an_object_is_signed(keys: pytest.MonkeyPatch) -> None:
    with stub({"GET": PARTIAL}) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        assert read(origin, 3) == b"abc"
        assert by_url(seen) == [False, True, True]
        assert all(headers["Range"] == "bytes=5-7" for _, _, headers in seen)
        origin.close()


def test_other_objects_are_asked_for_by_urls_at_once(
    keys: pytest.MonkeyPatch,
) -> None:
    answers = {"GET": PARTIAL}
    with stub(answers) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        for key in (KEY, "second", "third", "fourth"):  # each is read once
            read(origin, key=key)
        assert by_url(seen) == [False, True, True, True]
        answers["GET"] = refusal("NoSuchKey", status=404)
        with pytest.raises(NotFound):
            read(origin, key="missing")
        answers["GET"] = PARTIAL
        read(origin, key="other")
        assert by_url(seen)[4:] == [True, False, False], "botocore asks again after a refusal"
        origin.close()


def test_missing_objects_say_nothing_about_urls(keys: pytest.MonkeyPatch) -> None:
    """As many at once as refusals that end the use of URLs, and one more."""
    gone = [f"gone-{number}" for number in range(presigned.REFUSALS + 1)]
    answers = {"GET": PARTIAL}
    with stub(answers) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        for key in gone:
            read(origin, key=key)
        answers["GET"] = refusal("NoSuchKey", status=404)
        for key in gone:
            with pytest.raises(NotFound):
                read(origin, key=key)
        answers["GET"] = PARTIAL
        for key in gone:  # they are there again, which refuses no URL either
            read(origin, key=key)
        seen.clear()
        read(origin, 2, key="other")
        assert by_url(seen) == [True, True]
        origin.close()


def test_an_old_url_is_signed_anew(
    keys: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presigned, "USED_FOR_S", -1.0)
    with stub({"GET": PARTIAL}) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        read(origin, 3)
        assert by_url(seen) == [False, False, False]
        origin.close()


def test_botocore_asks_again_for_what_was_refused(keys: pytest.MonkeyPatch) -> None:
    answers = {"GET": PARTIAL}
    with stub(answers) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        read(origin)
        answers["GET"] = refusal("AccessDenied")
        with pytest.raises(NotAllowed, match="AccessDenied") as caught:
            read(origin)
        assert by_url(seen) == [False, True, False]
        assert "X-Amz" not in shown(caught.value)
        answers["GET"] = PARTIAL
        assert read(origin) == b"abc"
        origin.close()


def test_a_busy_storage_is_not_asked_twice(keys: pytest.MonkeyPatch) -> None:
    answers = {"GET": PARTIAL}
    with stub(answers) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        read(origin)
        answers["GET"] = refusal("SlowDown", status=503)
        with pytest.raises(OriginUnavailable, match="503 SlowDown"):
            read(origin)
        assert by_url(seen) == [False, True]
        origin.close()


def test_a_storage_that_takes_no_urls_is_asked_by_botocore_alone(
    keys: pytest.MonkeyPatch,
) -> None:
    class NoQueries(Stub):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            self.answers["GET"] = (
                refusal("NoQuery", status=400) if "?X-Amz" in self.path else PARTIAL
            )
            self._any()

    with stub({}, kind=NoQueries) as (url, seen):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        assert read(origin, 8) == b"abc"
        assert by_url(seen) == [
            False,
            *[True, False] * presigned.REFUSALS,
            False,
            False,
            False,
            False,
        ]
        origin.close()


def test_reads_beside_each_other_do_not_hide_refusals() -> None:
    """A read that begins before botocore has answered the one whose URL was refused."""
    asked: list[object] = []

    def send(request: object) -> SimpleNamespace:
        asked.append(request)
        raw = SimpleNamespace(read=lambda _size: b"", close=lambda: None)
        return SimpleNamespace(status_code=400, headers={}, raw=raw)

    client = SimpleNamespace(
        generate_presigned_url=lambda *_, **__: "http://storage/big?X-Amz",
        _endpoint=SimpleNamespace(http_session=SimpleNamespace(send=send)),
    )
    urls = presigned.Presigned("bucket")
    urls.learn(client, KEY)
    for _ in range(8):
        assert urls.get(client, KEY, 0, 3) is None
        beside = threading.Thread(target=urls.get, args=(client, KEY, 0, 3))
        beside.start()
        beside.join()
        urls.learn(client, KEY)
        urls.learn(client, KEY)
    assert len(asked) == presigned.REFUSALS


def test_a_url_is_never_shown(keys: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "p2pcache")
    with stub({"GET": PARTIAL}) as (url, _):
        keys.setenv("AWS_ENDPOINT_URL", url)
        origin = open_origin("s3://bucket", QUICK)
        read(origin)
    origin.rest()
    with pytest.raises(OriginUnavailable) as caught:  # the server is gone
        read(origin)
    told = shown(caught.value) + caplog.text
    for word in ("X-Amz", "Signature", "AKIDEXAMPLE", SECRET):
        assert word not in told
    origin.close()


def test_a_real_server_takes_them(
    s3_env: pytest.MonkeyPatch, seaweed: Seaweed, tmp_path: Path
) -> None:
    origin = open_origin(seaweed.url(prefix="presigned"))
    origin.put(KEY, b"0123456789")
    before = seaweed.counters().gets
    assert read(origin, 5) == b"567"
    assert seaweed.counters().gets - before == 5
    inner = origin.inner
    assert isinstance(inner, S3Origin)
    assert inner._presigned._refused == 0
    assert inner._presigned._known
    origin.close()
