"""Credentials, endpoints and certificates: each source works, each mistake is named."""

import gc
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import botocore.exceptions
import psutil
import pytest

from loadtest.kit.seaweed import Seaweed
from p2pcache.errors import (
    Conflict,
    NoSpace,
    NotAllowed,
    NotFound,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.origins import OriginSettings, open_origin
from p2pcache.io.origins.base import ABSENT
from p2pcache.io.origins.s3.errors import translate
from tests.io.origins.s3.stub import stub

QUICK = OriginSettings(retry_for_s=0, connect_timeout_s=10, read_timeout_s=20)


def roundtrip(url: str, settings: OriginSettings = QUICK) -> None:
    origin = open_origin(url, settings)
    origin.put("access/x", b"hello")
    assert origin.get("access/x", limit=10)[0] == b"hello"
    origin.delete("access/x")
    origin.close()


def test_environment(s3_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    roundtrip(seaweed.url())


def test_service_endpoint_variable(s3_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    s3_env.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    s3_env.setenv("AWS_ENDPOINT_URL_S3", seaweed.endpoint)
    roundtrip(seaweed.url())


def test_profile(clean_env: pytest.MonkeyPatch, seaweed: Seaweed, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        f"[team]\naws_access_key_id={seaweed.access_key}\naws_secret_access_key={seaweed.secret_key}\n"
    )
    clean_env.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    clean_env.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    clean_env.setenv("AWS_PROFILE", "team")
    roundtrip(seaweed.url())
    clean_env.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UsageError, match="nobody"):
        roundtrip(seaweed.url())


def test_instance_role(clean_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    role = {
        "Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": seaweed.access_key,
        "SecretAccessKey": seaweed.secret_key, "Token": "",
        "Expiration": "2999-01-01T00:00:00Z", "LastUpdated": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    base = "/latest/meta-data/iam/security-credentials/"
    answers: dict[str, tuple[int, dict[str, str], bytes]] = {
        "/latest/api/token": (200, {}, b"token"),
        base: (200, {}, b"node-role"),
        base + "node-role": (200, {}, json.dumps(role).encode()),
    }
    with stub(answers) as (endpoint, seen):
        clean_env.setenv("AWS_EC2_METADATA_DISABLED", "false")
        clean_env.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint + "/")
        clean_env.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
        roundtrip(seaweed.url())
        assert [path for _, path, _ in seen][-1] == base + "node-role"


def test_no_credentials(clean_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    clean_env.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    with pytest.raises(NotAllowed, match=r"AWS_ACCESS_KEY_ID \(not set\).*profile 'default'"):
        roundtrip(seaweed.url())


def test_wrong_secret_is_never_shown(s3_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    for name, value in (
        ("AWS_SECRET_ACCESS_KEY", "wrong-hush"),
        ("AWS_ACCESS_KEY_ID", "nobody-hush"),
    ):
        s3_env.setenv(name, value)
        origin = open_origin(seaweed.url(), QUICK)
        actions: list[Callable[[], object]] = [
            partial(origin.get, "x", limit=1),
            partial(origin.stat, "x"),
            partial(origin.put, "x", b""),
        ]
        for action in actions:
            with pytest.raises(NotAllowed, match="AWS_ACCESS_KEY_ID") as caught:
                action()
            assert "hush" not in str(caught.value)
            assert "\n" not in str(caught.value)


def test_missing_bucket(s3_env: pytest.MonkeyPatch) -> None:
    origin = open_origin("s3://no-such-bucket", QUICK)
    for action in (
        lambda: origin.get("x", limit=1),
        lambda: origin.put("x", b""),
        lambda: list(origin.list("")),
    ):
        with pytest.raises(NotFound, match="no bucket 'no-such-bucket'"):
            action()


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///key", "s3://u:hush@bucket/x", "s3://buc ket", "s3://b/../x", "s3://bucket/a//b",
     "s3://bucket?x=1", "s3://bucket/x?y", "s3://bucket/a%20b", "s3://bucket/a \n", "s3://bucket/ a"],
)  # fmt: skip
def test_bad_urls(s3_env: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_origin(url, QUICK)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "prefix", ["a b", "a+b", "\u00fcn\u00ef", "a=1/date=2026-01-01", "it's (1)&c"]
)
def test_prefixes_that_s3_has(s3_env: pytest.MonkeyPatch, seaweed: Seaweed, prefix: str) -> None:
    origin = open_origin(seaweed.url(prefix=prefix), QUICK)
    assert origin.put("x/y", b"1", expect=ABSENT) == origin.get("x/y", limit=1)[1]
    assert [info.key for info in origin.list("x/")] == ["x/y"]
    assert origin.conditional_put


def test_a_prefix_says_which_parts_it_may_have(s3_env: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="has the part ''; a part isn't empty"):
        open_origin("s3://models//x", QUICK)


def test_bad_switches() -> None:
    with pytest.raises(UsageError, match="P2PCACHE_S3_ADDRESSING"):
        OriginSettings.from_env({"P2PCACHE_S3_ADDRESSING": "sideways"})
    with pytest.raises(UsageError, match="P2PCACHE_S3_UNSIGNED"):
        OriginSettings.from_env({"P2PCACHE_S3_UNSIGNED": "maybe"})


def test_nothing_listens(s3_env: pytest.MonkeyPatch) -> None:
    s3_env.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(OriginUnavailable, match=r"127\.0\.0\.1:1"):
        roundtrip("s3://models")
    s3_env.setenv("AWS_ENDPOINT_URL", "no url at all")
    with pytest.raises(UsageError, match=r"^s3://models: .*AWS_ENDPOINT_URL"):
        roundtrip("s3://models")


def test_a_password_in_the_endpoint_stays_there(s3_env: pytest.MonkeyPatch) -> None:
    """Our messages stand on the tracker's page, which asks for no login."""
    s3_env.setenv("AWS_ENDPOINT_URL", "http://user:hunter2@127.0.0.1:1")
    with pytest.raises(OriginUnavailable) as caught:
        roundtrip("s3://models")
    assert "hunter2" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)


def test_unsigned(clean_env: pytest.MonkeyPatch) -> None:
    with stub({"GET": (200, {"ETag": '"1"'}, b"public")}) as (endpoint, seen):
        clean_env.setenv("AWS_ENDPOINT_URL", endpoint)
        clean_env.setenv("P2PCACHE_S3_UNSIGNED", "1")
        assert open_origin("s3://public").get("x", limit=10)[0] == b"public"
    assert "Authorization" not in seen[0][2]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("auto", "http://store.internal:9000/models/x"),
        ("path", "http://store.internal:9000/models/x"),
        ("virtual", "http://models.store.internal:9000/x"),
    ],
)
def test_addressing(s3_env: pytest.MonkeyPatch, style: str, expected: str) -> None:
    s3_env.setenv("AWS_ENDPOINT_URL", "http://store.internal:9000")
    s3_env.setenv("P2PCACHE_S3_ADDRESSING", style)
    client = open_origin("s3://models").inner._client  # type: ignore[attr-defined]
    url = client.generate_presigned_url("get_object", Params={"Bucket": "models", "Key": "x"})
    assert url.startswith(expected + "?")


def test_region(clean_env: pytest.MonkeyPatch) -> None:
    def host() -> str:
        return str(open_origin("s3://models").inner._client.meta.endpoint_url)  # type: ignore[attr-defined]

    clean_env.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert "eu-west-1" in host()
    clean_env.setenv("AWS_REGION", "eu-north-1")
    assert "eu-north-1" in host()


def test_own_ca(s3_env: pytest.MonkeyPatch, tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with stub({"GET": (200, {"ETag": '"1"'}, b"safe")}, tls=certificate) as (endpoint, _):
        s3_env.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(NotAllowed, match="AWS_CA_BUNDLE"):
            open_origin("s3://models", QUICK).get("x", limit=10)
        s3_env.setenv("AWS_CA_BUNDLE", str(certificate[0]))
        assert open_origin("s3://models", QUICK).get("x", limit=10)[0] == b"safe"


@pytest.mark.slow
def test_real_server_over_tls(
    clean_env: pytest.MonkeyPatch, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    with Seaweed(tmp_path, tls=certificate, nice=5) as server:
        for name, value in server.env().items():
            clean_env.setenv(name, value)
        clean_env.setenv("AWS_CA_BUNDLE", str(certificate[0]))
        roundtrip(server.url())


PUT_OK = (200, {"ETag": '"1"'}, b"")


@pytest.mark.parametrize(
    "put", [PUT_OK, (501, {}, b"<Error><Code>NotImplemented</Code></Error>"), (412, {}, b"")],
    ids=["ignores", "knows nothing", "refuses all"],
)  # fmt: skip
def test_probe_finds_stores_without_conditional_put(
    s3_env: pytest.MonkeyPatch, put: tuple[int, dict[str, str], bytes]
) -> None:
    with stub({"PUT": put, "DELETE": (204, {}, b"")}) as (endpoint, seen):
        s3_env.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models/p", QUICK)
        assert not seen  # nothing is probed before somebody wants to write
        assert not origin.conditional_put
        assert not origin.conditional_put
        assert [m for m, _, _ in seen].count("DELETE") == 1
        assert all("/models/p/p2pcache/v1/probe/" in path for _, path, _ in seen)


def test_range_requests_ignored(s3_env: pytest.MonkeyPatch) -> None:
    with stub({"GET": (200, {"ETag": '"1"'}, bytes(100))}) as (endpoint, _):
        s3_env.setenv("AWS_ENDPOINT_URL", endpoint)
        body = open_origin("s3://models", QUICK).open("x", 10, 5)
        with body, pytest.raises(UsageError, match="range"):
            body.readinto(memoryview(bytearray(5)))


def test_bodies_without_a_length(s3_env: pytest.MonkeyPatch) -> None:
    chunked = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    headers = {"Transfer-Encoding": "chunked", "Content-Length": "", "ETag": '"1"'}
    with stub({"GET": (206, headers, chunked)}) as (endpoint, _):
        s3_env.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", QUICK)
        for _ in range(3):
            buffer, found = memoryview(bytearray(10)), b""
            with origin.open("x", 0, 5) as body:
                while count := body.readinto(buffer):
                    found += buffer[:count]
            assert found == b"abcde"
            assert origin.get("x", limit=5)[0] == b"abcde"


@pytest.mark.parametrize(
    ("status", "code", "expected", "says"),
    [
        (403, "RequestTimeTooSkewed", NotAllowed, "clock"),
        (403, "AccessDenied", NotAllowed, "list the bucket"),
        (400, "ExpiredToken", NotAllowed, "expired (ExpiredToken: m): renew them"),
        (403, "SignatureDoesNotMatch", NotAllowed, "doesn't take the S3 credentials"),
        (301, "PermanentRedirect", UsageError, "AWS_REGION"),
        (404, "NoSuchBucket", NotFound, "no bucket"),
        (404, "NoSuchKey", NotFound, "doesn't exist"),
        (404, "404", NotFound, "doesn't exist"),
        (409, "ConditionalRequestConflict", Conflict, "somebody else"),
        (412, "PreconditionFailed", Conflict, "somebody else"),
        (416, "InvalidRange", OriginChanged, "push it again"),
        (429, "TooManyRequests", OriginUnavailable, "429"),
        (500, "InternalError", OriginUnavailable, "500"),
        (503, "SlowDown", OriginUnavailable, "503"),
        (501, "NotImplemented", P2PCacheError, "501"),
        (507, "InsufficientStorage", NoSpace, "full"),
        (418, "Teapot\n\x1b[31m" + "x" * 5000, P2PCacheError, "Teapot"),
    ],
)
def test_answers(status: int, code: str, expected: type[P2PCacheError], says: str) -> None:
    error = botocore.exceptions.ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "GetObject",
    )
    found = translate(error, "s3://b/k", "b", "http://e")
    assert isinstance(found, expected)
    assert says in str(found)
    assert len(str(found)) < 1000
    assert str(found).isprintable()


def test_create_only_on_a_real_server(s3_env: pytest.MonkeyPatch, seaweed: Seaweed) -> None:
    origin = open_origin(seaweed.url(prefix="once"), QUICK)
    origin.put("x", b"1", expect=ABSENT)
    with pytest.raises(Conflict, match="somebody else"):
        origin.put("x", b"2", expect=ABSENT)


def test_unused_connections_end_when_the_origin_rests(
    s3_env: pytest.MonkeyPatch, seaweed: Seaweed
) -> None:
    def connected() -> int:
        here = psutil.Process().net_connections("tcp")
        return sum(one.raddr[1:] == (seaweed.port,) for one in here)

    gc.collect()  # connections of earlier tests must not end in the middle
    before = connected()
    origin = open_origin(seaweed.url(prefix="rest"), QUICK)
    origin.put("blob", b"x" * 100_000)
    bodies = [origin.open("blob", 0, 100_000) for _ in range(8)]
    buffer = memoryview(bytearray(100_000))
    for body in bodies:  # all at once
        body.readinto(buffer[:1])
    for body in bodies:
        while body.readinto(buffer):
            pass
        body.close()
    assert connected() >= before + 8
    origin.rest()
    assert connected() == before
    assert origin.get("blob", limit=100_000)[0] == b"x" * 100_000
    origin.close()
    assert connected() == before
