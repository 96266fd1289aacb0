"""No message and no log line shows a credential, whoever quotes it."""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator

import botocore.exceptions
import pytest

from p2pcache.errors import P2PCacheError
from p2pcache.io import log
from p2pcache.io.origins import open_origin
from tests.io.origins.s3.stub import QUICK, SECRET, refusal, shown, stub


@pytest.mark.parametrize(
    "said",
    [
        f"the token token-{SECRET} is bad",
        "AWS4-HMAC-SHA256 Credential=AKHUSHHUSH/20260101/r/s3/aws4_request, Signature=feedbeef",
        "GET /b/k?X-Amz-Credential=AKHUSHHUSH%2F2026&X-Amz-Signature=feedbeef",
        "http://user:hushpass@proxy:3128/ answers",
        "token-hush%2BHush%2Fhush%3D%3D",
        "http://h/k?AWSAccessKeyId=AKHUSHHUSH&Signature=feedbeef&Expires=1",
    ],
)
@pytest.mark.parametrize("status", [400, 403, 404, 409, 418, 500, 503])
def test_a_secret_that_a_server_quotes_is_hidden(
    keys: pytest.MonkeyPatch, status: int, said: str
) -> None:
    body = said.replace("&", "&amp;")
    with stub({"GET": refusal("Odd", body, status)}) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(P2PCacheError) as caught:
            open_origin("s3://models", QUICK).get("x", limit=1)
    for secret in ("hush", "HUSH", "Hush", "feedbeef"):
        assert secret not in shown(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda text: ValueError(f"Invalid header value {text.encode()!r}"),
        lambda text: botocore.exceptions.HTTPClientError(
            error=ValueError(f"Invalid header value {text.encode()!r}")
        ),
        lambda text: botocore.exceptions.EndpointConnectionError(
            endpoint_url=f"http://h/k?x={text}", error=OSError(111, "Connection refused")
        ),
        lambda text: botocore.exceptions.CredentialRetrievalError(
            provider="custom-process", error_msg=text
        ),
        lambda text: botocore.exceptions.BotoCoreError(msg=text),
        lambda text: OSError(f"odd {text}"),
        ValueError,
    ],
    ids=["header", "wrapped", "url", "provider", "unknown", "os", "value"],
)
def test_a_secret_that_a_library_quotes_is_hidden(
    keys: pytest.MonkeyPatch, make: Callable[[str], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a value that nobody told us, for example of a credentials service."""
    origin = open_origin("s3://models", QUICK)

    def broken(*_: object, **__: object) -> None:
        raise make("unheard-of-Token123\n")

    monkeypatch.setattr(origin.inner._client, "get_object", broken)  # type: ignore[attr-defined]
    out = io.StringIO()
    with debug_log(out):
        with pytest.raises(P2PCacheError) as caught:
            origin.get("x", limit=1)
        logging.getLogger("p2pcache.x").error("it failed", exc_info=caught.value)
    assert "unheard-of" not in str(caught.value)
    assert "it failed" in out.getvalue()
    assert "unheard-of" not in out.getvalue()


@contextlib.contextmanager
def debug_log(out: io.StringIO) -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("p2pcache")
    before = list(root.handlers), root.level, ours.level
    log.setup("debug", "text", out)
    try:
        yield
    finally:
        root.handlers, root.level, ours.level = before[0], before[1], before[2]


def test_a_bug_s_trace_hides_the_credentials_in_use(keys: pytest.MonkeyPatch) -> None:
    open_origin("s3://models", QUICK).close()
    out = io.StringIO()
    with debug_log(out):
        try:
            raise KeyError(f"token-{SECRET}", "AKHUSHHUSH")
        except KeyError:
            logging.getLogger("p2pcache.x").exception("a bug")
    assert "a bug" in out.getvalue()
    assert "hush" not in out.getvalue().lower()
