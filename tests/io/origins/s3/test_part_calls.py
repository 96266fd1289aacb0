"""What proves the bytes of an upload: TLS, a sum that the storage looks at, or the signature."""

import base64
import hashlib
import io
import random
import secrets
import zlib
from pathlib import Path
from typing import Any

import pytest

from loadtest.kit.faultproxy import FaultProxy
from loadtest.kit.seaweed import Seaweed
from p2pcache.errors import OriginUnavailable
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.s3 import part_calls
from tests.io.origins.s3.stub import QUICK, Stub, refusal, stub

DATA = random.Random(9).randbytes(3 << 20)
UNSIGNED = "UNSIGNED-PAYLOAD"
OK: tuple[int, dict[str, str], bytes] = (200, {"ETag": '"1"'}, b"")


class Looks(Stub):
    """Looks at sums, as S3 does."""

    of_parts = True

    def _any(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(size)
        given = self.headers.get("x-amz-checksum-crc32")
        right = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        if "partNumber" in self.path and not self.of_parts:
            given = None
        self._say(*(OK if given in (None, right) else refusal("BadDigest", status=400)))

    def _say(self, status: int, headers: dict[str, str], text: bytes) -> None:
        self.seen.append((self.command, self.path, dict(self.headers)))
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(text))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def _post(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        begun = (
            b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
        )
        ended = b"<CompleteMultipartUploadResult><ETag>1</ETag></CompleteMultipartUploadResult>"
        self._say(200, {}, begun if self.path.endswith("?uploads") else ended)

    do_PUT = do_DELETE = _any  # noqa: N815 - http.server calls them so
    do_POST = _post  # noqa: N815 - as above


class LooksAtObjects(Looks):
    """Looks at sums of objects, not of parts."""

    of_parts = False


class NoParts(Looks):
    """Knows nothing of uploads in parts."""

    def _post(self) -> None:
        self._say(*refusal("NotImplemented", status=501))

    do_POST = _post  # noqa: N815 - http.server calls it so


class Refuses(Stub):
    """Takes no object with a sum."""

    def _any(self) -> None:
        if "x-amz-checksum-crc32" in self.headers:
            self.command = "REFUSED"
        super()._any()

    do_PUT = do_DELETE = _any  # noqa: N815 - http.server calls them so


def headers_of(
    keys: pytest.MonkeyPatch, kind: type[Stub], data: bytes, tls: tuple[Path, Path] | None = None
) -> dict[str, str]:
    """Headers with which an origin uploads `data` as the object `big`."""
    answers = {"PUT": OK, "DELETE": OK, "REFUSED": refusal("NotImplemented", status=501)}
    with stub(answers, kind=kind, tls=tls) as (endpoint, seen):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", QUICK)
        origin.put_file("big", io.BytesIO(data), len(data))
        origin.close()
    (found,) = [h for method, path, h in seen if (method, path) == ("PUT", "/models/big")]
    probes = [method for method, path, _ in seen if "/probe/" in path]
    assert probes.count("PUT") <= 4
    assert "DELETE" in probes if probes else True
    begun = [path for _, path, _ in seen if path.endswith("?uploads")]
    ended = [path for method, path, _ in seen if method != "PUT" and "uploadId=" in path]
    assert len(ended) == (0 if kind is NoParts else len(begun)), "nothing is left of a probe"
    return {name.lower(): value for name, value in found.items()}


def test_a_small_object_is_bound_by_the_signature_over_plain_http(keys: pytest.MonkeyPatch) -> None:
    with stub({"PUT": OK}) as (endpoint, seen):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", QUICK)
        origin.put("tag", b"bytes")
        origin.close()
    assert seen[0][2]["X-Amz-Content-SHA256"] == hashlib.sha256(b"bytes").hexdigest()


def test_storage_that_looks_at_sums_gets_one_in_place_of_the_hash(keys: pytest.MonkeyPatch) -> None:
    headers = headers_of(keys, Looks, DATA)
    assert headers["x-amz-content-sha256"] == UNSIGNED
    assert headers["x-amz-checksum-crc32"] == part_calls.crc32_of(DATA)


@pytest.mark.parametrize("kind", [Stub, Refuses, LooksAtObjects, NoParts])
def test_storage_that_ignores_or_refuses_sums_gets_the_hash(
    keys: pytest.MonkeyPatch, kind: type[Stub]
) -> None:
    headers = headers_of(keys, kind, DATA)
    assert headers["x-amz-content-sha256"] == hashlib.sha256(DATA).hexdigest()
    assert "x-amz-checksum-crc32" not in headers


def test_no_probe_for_small_files(keys: pytest.MonkeyPatch) -> None:
    headers = headers_of(keys, Looks, b"small")
    assert headers["x-amz-content-sha256"] == hashlib.sha256(b"small").hexdigest()


@pytest.mark.parametrize(("size", "asks"), [(10, False), (1 << 20, False), (3 << 20, True)])
def test_only_a_large_body_waits_until_the_storage_wants_it(
    keys: pytest.MonkeyPatch, size: int, *, asks: bool
) -> None:
    assert ("expect" in headers_of(keys, Stub, bytes(size))) == asks


def test_over_tls_the_channel_is_enough(
    keys: pytest.MonkeyPatch, certificate: tuple[Path, Path]
) -> None:
    keys.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    headers = headers_of(keys, Looks, DATA, tls=certificate)
    assert headers["x-amz-content-sha256"] == UNSIGNED
    assert "x-amz-checksum-crc32" not in headers


def sent_by(origin: Retrying) -> list[dict[str, Any]]:
    """Headers of the parts that `origin` sends from now on."""
    seen: list[dict[str, Any]] = []
    events = origin.inner._client.meta.events  # type: ignore[attr-defined]

    def note(request: Any, **_: object) -> None:
        seen.append(dict(request.headers))

    events.register_first("before-send.s3.UploadPart", note)
    return seen


def test_parts_are_proved_by_a_real_storage(s3_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    origin = open_origin(
        seaweed.url(prefix=f"t/{secrets.token_hex(6)}"), OriginSettings(part_bytes=5 << 20)
    )
    origin.put_file("warm", io.BytesIO(DATA), len(DATA))  # tries the sums, with a part, too
    seen = sent_by(origin)
    data = random.Random(6).randbytes(11 << 20)
    origin.put_file("big", io.BytesIO(data), len(data))
    assert len(seen) == 3
    assert all(headers["X-Amz-Content-SHA256"] == UNSIGNED.encode() for headers in seen)
    assert all("x-amz-checksum-crc32" in headers for headers in seen)
    with origin.open("big", 0, len(data)) as body:
        found = bytearray(len(data))
        view = memoryview(found)
        while count := body.readinto(view):
            view = view[count:]
    assert found == data
    origin.close()


def test_a_part_that_came_damaged_is_sent_again(
    faulty: tuple[Retrying, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, _ = faulty
    origin.put_file("warm", io.BytesIO(DATA), len(DATA))
    true, wrong = part_calls.crc32_of, ["AAAAAA==", "AAAAAA=="]
    monkeypatch.setattr(part_calls, "crc32_of", lambda data: wrong.pop() if wrong else true(data))
    origin.put_file("big", io.BytesIO(DATA), len(DATA))
    assert not wrong
    info = origin.stat("big")
    assert info is not None
    assert info.size == len(DATA)


def test_bytes_that_always_come_damaged_end_the_push(
    s3_env: pytest.MonkeyPatch, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = open_origin(
        seaweed.url(prefix=f"t/{secrets.token_hex(6)}"), OriginSettings(retry_for_s=0.2)
    )
    origin.put_file("warm", io.BytesIO(DATA), len(DATA))
    monkeypatch.setattr(part_calls, "crc32_of", lambda data: "AAAAAA==")
    with pytest.raises(OriginUnavailable, match="damaged"):
        origin.put_file("big", io.BytesIO(DATA), len(DATA))
    assert origin.stat("big") is None
    origin.close()
