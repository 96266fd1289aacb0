"""Storage that refuses: what is said, what never is, and credentials that are renewed meanwhile."""

import contextlib
import datetime as dt
import http.server
import io
import ipaddress
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.exceptions
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError, UsageError
from p2pcache.io import log
from p2pcache.io.origins import OriginSettings, open_origin
from p2pcache.io.origins.s3.errors import translate
from tests.io.origins.s3_stub import stub

QUICK = OriginSettings(retry_for_s=0, connect_timeout_s=10, read_timeout_s=20)
PATIENT = OriginSettings(retry_for_s=20, connect_timeout_s=10, read_timeout_s=20)
AT_ONCE_S = 8.0  # of the 20 s that PATIENT would try again; the rest is for a busy machine
SECRET = "hush+Hush/hush=="

ABSENT: tuple[int, dict[str, str], bytes] = (
    404,
    {},
    b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>",
)


def refusal(code: str, said: str = "m", status: int = 403) -> tuple[int, dict[str, str], bytes]:
    return status, {}, f"<Error><Code>{code}</Code><Message>{said}</Message></Error>".encode()


@pytest.fixture
def keys(clean_env: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment with credentials."""
    clean_env.setenv("AWS_ACCESS_KEY_ID", "AKHUSHHUSH")
    clean_env.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    clean_env.setenv("AWS_SESSION_TOKEN", f"token-{SECRET}")
    return clean_env


# -- credentials that can't be right -------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
)
@pytest.mark.parametrize("shape", ["{}\n", " {}", "{} ", "{}\r\n", "{0}\n{0}", "\t{}"])
def test_white_space_in_credentials_is_said_at_once(
    keys: pytest.MonkeyPatch, name: str, shape: str
) -> None:
    keys.setenv(name, shape.format("hushHUSHhush"))
    with stub({"GET": ABSENT}) as (endpoint, seen):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(NotAllowed, match=name) as caught:
            open_origin("s3://models", PATIENT)
    assert not seen
    assert "hush" not in shown(caught.value)


def test_white_space_in_a_credentials_file_names_file_and_profile(
    clean_env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[team]\naws_access_key_id=AK\naws_secret_access_key=x\naws_session_token=hush\n  hush\n"
    )
    clean_env.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    clean_env.setenv("AWS_PROFILE", "team")
    with pytest.raises(
        NotAllowed, match=r"aws_session_token of profile 'team' in .*/credentials"
    ) as e:
        open_origin("s3://models", PATIENT)
    assert "hush" not in str(e.value)


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_CA_BUNDLE"])
def test_white_space_in_a_setting_is_said_at_once(keys: pytest.MonkeyPatch, name: str) -> None:
    keys.setenv(name, "http://u:hush@h\n")
    with pytest.raises(UsageError, match=name) as caught:
        open_origin("s3://models", PATIENT)
    assert "hush" not in shown(caught.value)


def test_credentials_that_nobody_uses_may_be_anything(keys: pytest.MonkeyPatch) -> None:
    keys.setenv("AWS_SESSION_TOKEN", "x\n")
    keys.setenv("P2PCACHE_S3_UNSIGNED", "1")
    with stub({"GET": ABSENT}) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        unsigned = OriginSettings.from_env()
        open_origin("s3://models", unsigned).close()


# -- nothing secret in any message ------------------------------------------------------------------


def shown(error: BaseException) -> str:
    """All that a log may ever show of an error."""
    return str(error) + "".join(traceback.format_exception(error))


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
def test_what_a_server_quotes_is_hidden(keys: pytest.MonkeyPatch, status: int, said: str) -> None:
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
def test_what_a_library_quotes_is_hidden(
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


# -- refusals, at once ------------------------------------------------------------------------------


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


def test_a_missing_token_file_is_named(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_env.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
    clean_env.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    began = time.monotonic()
    with pytest.raises(NotAllowed, match=r"/token; .*AWS_WEB_IDENTITY_TOKEN_FILE"):
        open_origin("s3://models", PATIENT).get("x", limit=1)
    assert time.monotonic() - began < AT_ONCE_S


def test_a_missing_ca_bundle_is_named(keys: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with stub({"GET": ABSENT}, tls=made(tmp_path)) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        keys.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
        with pytest.raises(NotAllowed, match="AWS_CA_BUNDLE"):
            open_origin("s3://models", PATIENT).get("x", limit=1)


def made(folder: Path, name: str = "127.0.0.1", days: int = 2) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key; with `days` below 0 it has expired."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    other = x509.DNSName(name) if name[0].isalpha() else x509.IPAddress(ipaddress.ip_address(name))
    certificate = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject)
        .public_key(key.public_key()).serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30)).not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([other]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    paths = folder / "c.pem", folder / "k.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.mark.parametrize(
    ("name", "days", "says"),
    [("other.example", 2, "another name"), ("10.9.9.9", 2, "another name"),
     ("127.0.0.1", -1, "isn't valid now")],
)  # fmt: skip
def test_a_wrong_certificate_is_a_refusal(
    keys: pytest.MonkeyPatch, tmp_path: Path, name: str, days: int, says: str
) -> None:
    files = made(tmp_path, name, days)
    with stub({"GET": ABSENT}, tls=files) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        keys.setenv("AWS_CA_BUNDLE", str(files[0]))
        began = time.monotonic()
        with pytest.raises(NotAllowed, match=says):
            open_origin("s3://models", PATIENT).get("x", limit=1)
        assert time.monotonic() - began < AT_ONCE_S


# -- renewed credentials ------------------------------------------------------------------------------


class Picky(http.server.BaseHTTPRequestHandler):
    """Takes only requests that are signed with the key `good`; hands out keys as STS does."""

    protocol_version = "HTTP/1.1"
    good = "AKNEW"
    gave = 0
    refused = 0

    def do_GET(self) -> None:
        if f"Credential={type(self).good}" in self.headers.get("Authorization", ""):
            return self._answer(200, b"ok")
        type(self).refused += 1
        return self._answer(400, refusal("ExpiredToken", status=400)[2])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).gave += 1
        end = "2999-01-01T00:00:00Z"
        self._answer(200, (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>AKSTS{type(self).gave}</AccessKeyId><SecretAccessKey>x</SecretAccessKey>"
            f"<SessionToken>t</SessionToken><Expiration>{end}</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        ).encode())  # fmt: skip

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def picky(clean_env: pytest.MonkeyPatch) -> Iterator[type[Picky]]:
    handler: Any = type("Handler", (Picky,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    clean_env.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def write_keys(file: Path, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=x\n")


def test_a_renewed_file_is_read(
    clean_env: pytest.MonkeyPatch, picky: type[Picky], tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    write_keys(file, "AKOLD")
    clean_env.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    origin = open_origin("s3://models", QUICK)
    with pytest.raises(NotAllowed, match="expired"):
        origin.get("x", limit=2)
    write_keys(file, "AKNEW")
    time.sleep(1.1)  # a file that was just looked at is left alone for a second
    assert origin.get("x", limit=2)[0] == b"ok"
    assert origin.trouble is None
    buffer = memoryview(bytearray(2))
    picky.good = "AKNEWER"
    write_keys(file, "AKNEWER")
    time.sleep(1.1)
    with origin.open("x", 0, 2) as body:  # in the middle of a pull, without an error
        assert body.readinto(buffer) == 2
    origin.close()


def test_a_service_that_gives_new_keys_each_time_is_asked_once(
    clean_env: pytest.MonkeyPatch, picky: type[Picky], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a.jwt.token")
    clean_env.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
    clean_env.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    picky.good = "AKSTS2"
    origin = open_origin("s3://models", PATIENT)
    assert origin.get("x", limit=2)[0] == b"ok"  # with the second ones
    picky.good = "nobody"
    began = time.monotonic()
    with pytest.raises(NotAllowed, match="expired"):
        origin.get("x", limit=2)
    assert time.monotonic() - began < AT_ONCE_S
    assert picky.gave == 2
    origin.close()
