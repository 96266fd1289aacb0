"""Credentials of an S3 client: refused when they can't be right, exchanged when they were renewed."""

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.origins import OriginSettings, open_origin
from tests.io.origins.s3.stub import ABSENT, AT_ONCE_S, PATIENT, QUICK, refusal, shown, stub


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


def test_unused_credentials_may_be_anything(keys: pytest.MonkeyPatch) -> None:
    keys.setenv("AWS_SESSION_TOKEN", "x\n")
    keys.setenv("P2PCACHE_S3_UNSIGNED", "1")
    with stub({"GET": ABSENT}) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint)
        unsigned = OriginSettings.from_env()
        open_origin("s3://models", unsigned).close()


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
