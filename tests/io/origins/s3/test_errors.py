"""Refusals of an S3 server: said at once, and over when it answers again."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, ClassVar

import botocore.exceptions
import pytest
from botocore.parsers import ResponseParserError

from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.s3.answers import ANSWER_BYTES
from p2pcache.io.origins.s3.errors import translate
from tests.io.origins.s3.stub import AT_ONCE_S, PATIENT, QUICK, Stub, refusal, stub


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refusal("ExpiredToken", status=400), "expired"),
        (refusal("InvalidToken", status=400), "InvalidToken"),
        (refusal("SignatureDoesNotMatch"), "SignatureDoesNotMatch"),
        (refusal("RequestTimeTooSkewed"), "clock"),
        (refusal("AccessDenied"), "AccessDenied"),
        (refusal("InvalidObjectState"), "archived"),
    ],
)
def test_a_refusal_is_not_tried_again(
    keys: pytest.MonkeyPatch, answer: tuple[int, dict[str, str], bytes], says: str
) -> None:
    head = (answer[0], {"Content-Length": "0"}, b"")
    with stub({"GET": answer, "HEAD": head, "PUT": answer}) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", PATIENT)
        buffer = memoryview(bytearray(1))
        actions: list[Callable[[], object]] = [
            lambda: origin.get("x", limit=1),
            lambda: origin.stat("x"),  # whose answer has no body: asked once more, for its reason
            lambda: origin.put("x", b""),
            lambda: origin.open("x", 0, 1).readinto(buffer),
            lambda: list(origin.list("")),
        ]
        for action in actions:
            began = time.monotonic()
            with pytest.raises(NotAllowed, match=says):
                action()
            assert time.monotonic() - began < AT_ONCE_S
            assert isinstance(origin.trouble, NotAllowed)


@pytest.mark.parametrize("code", ["BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest"])
def test_damage_on_the_way_may_pass(code: str) -> None:
    answer: Any = {
        "Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": 400},
    }  # fmt: skip
    error = botocore.exceptions.ClientError(answer, "PutObject")
    assert isinstance(translate(error, "s3://b/k", "b", "http://e"), OriginUnavailable)


@pytest.mark.parametrize("code", ["SlowDown", "RequestLimitExceeded", "ServiceUnavailable"])
@pytest.mark.parametrize("status", [400, 403, 503])
def test_throttling_may_pass(code: str, status: int) -> None:
    answer: Any = {
        "Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status},
    }  # fmt: skip
    error = botocore.exceptions.ClientError(answer, "GetObject")
    found = translate(error, "s3://b/k", "b", "http://e")
    assert isinstance(found, OriginUnavailable)
    assert code in str(found)


def test_a_refusal_without_a_message_ends_with_its_code() -> None:
    answer: Any = {
        "Error": {"Code": "SlowDown", "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 503},
    }  # fmt: skip
    error = botocore.exceptions.ClientError(answer, "GetObject")
    assert str(translate(error, "s3://b/k", "b", "http://e")).endswith("answers 503 SlowDown")


def test_trouble_is_over_when_storage_answers(keys: pytest.MonkeyPatch) -> None:
    answers = {"GET": refusal("SlowDown", status=503), "HEAD": (200, {"ETag": '"1"'}, b"")}
    with stub(answers) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", QUICK)
        with pytest.raises(OriginUnavailable):
            origin.get("x", limit=1)
        assert "SlowDown" in str(origin.trouble)
        origin.ask_again("y")
        assert origin.trouble is None


LOGIN = "http://login.example/?next=hush"
PAGE = (200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>Please log in</html>")
STRANGERS: list[tuple[tuple[int, dict[str, str], bytes], str]] = [
    (PAGE, "a web page"),
    *(
        ((status, {"Location": LOGIN}, b""), "a redirect to login.example,")
        for status in (301, 302, 307, 308)
    ),
    ((302, {}, b"<html>Moved</html>"), "a redirect to another page"),
]


@pytest.mark.parametrize(("answer", "says"), STRANGERS)
def test_a_login_page_is_neither_an_object_nor_success(
    keys: pytest.MonkeyPatch, answer: tuple[int, dict[str, str], bytes], says: str
) -> None:
    with stub(dict.fromkeys(("GET", "PUT", "HEAD"), answer)) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", PATIENT)
        actions: list[Callable[[], object]] = [
            lambda: origin.get("x", limit=100),
            lambda: origin.stat("x"),
            lambda: origin.put("x", b"1"),
            lambda: origin.open("x", 0, 1).readinto(memoryview(bytearray(1))),
            lambda: list(origin.list("")),
        ]
        began = time.monotonic()
        for action in actions:
            with pytest.raises(
                NotAllowed, match=f"{endpoint} answers with {says}.*AWS_ENDPOINT_URL"
            ) as caught:
                action()
            assert "hush" not in str(caught.value)
        assert time.monotonic() - began < AT_ONCE_S


def test_an_answer_that_can_t_be_parsed_is_not_a_bug() -> None:
    found = translate(ResponseParserError("hush"), "s3://b/k", "b", "http://e")
    assert isinstance(found, NotAllowed)
    assert "s3://b/k: http://e answers with something that isn't S3's" in str(found)
    assert "hush" not in str(found)


class Endless(Stub):
    """Answers for ever."""

    sent: ClassVar[list[int]] = []

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.answers["GET"][0])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
        with contextlib.suppress(OSError):
            for _ in range(8 * ANSWER_BYTES // 0x10000):
                self.wfile.write(piece)
                self.sent.append(0x10000)
        self.close_connection = True

    do_GET = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - http.server calls them so


@pytest.mark.parametrize("status", [200, 403, 404, 500])
def test_an_answer_without_end_is_not_read_to_its_end(
    keys: pytest.MonkeyPatch, status: int
) -> None:
    """All of it was kept in memory, whoever answered."""
    with stub({"GET": (status, {}, b"")}, kind=Endless) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        origin = open_origin("s3://models", QUICK)
        actions: list[Callable[[], object]] = [
            lambda: list(origin.list("")),
            lambda: origin.put("x", b"1"),
            lambda: origin.get("x", limit=100),
        ]
        for action in actions:
            Endless.sent.clear()
            with pytest.raises(P2PCacheError) as caught:
                action()
            assert caught.value.exit_code != 1
            assert sum(Endless.sent) < 4 * ANSWER_BYTES  # what sockets hold is on top
        origin.close()
