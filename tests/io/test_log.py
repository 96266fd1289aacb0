import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from p2pcache.core.protocol.handshake import Secret
from p2pcache.io import log, redaction
from p2pcache.io.http import server


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("p2pcache")
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers, root.level, ours.level = before[0], before[1], before[2]


def said(log_format: log.Format, message: str, *args: object, level: str = "info") -> str:
    out = io.StringIO()
    log.setup(level, log_format, out)
    logging.getLogger("p2pcache.tracker.app").info(message, *args)
    return out.getvalue()


def test_text() -> None:
    line = said("text", "hello %s", "world")
    assert line.endswith("info tracker.app: hello world\n")


def test_json() -> None:
    entry = json.loads(said("json", "hello"))
    assert (entry["level"], entry["message"]) == ("info", "hello")


def test_level() -> None:
    assert said("text", "hello", level="warning") == ""


def test_journald_gets_severity_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert said("text", "hello") == "<6>info tracker.app: hello\n"


@pytest.mark.parametrize(
    "text",
    [
        "http://user:hunter2@host/x",
        "Authorization: Bearer hunter2",
        "bearer hunter2",
        "https://h/k?X-Amz-Signature=hunter2&a=b",
        "x-amz-security-token=hunter2",
        "x-amz-security-token:hunter2",
        "AWS4-HMAC-SHA256 Credential=hunter2/x, Signature=abc",
        "https://h/k?AWSAccessKeyId=hunter2&a=b",
        "https://h/k?Signature=hunter2&a=b",
    ],
)
def test_secrets_are_blanked(text: str) -> None:
    assert "hunter2" not in log.redact(text)
    assert "***" in log.redact(text)


def test_a_key_never_prints() -> None:
    assert "sesame" not in said("text", "key is %s", Secret(b"sesame"))


def test_no_forged_lines() -> None:
    line = said("text", "peer said %s", "x\n2026 error fake\x1b[31m\r")
    assert line.count("\n") == 1
    assert "\x1b" not in line
    assert "\r" not in line


def test_trace_is_kept_and_redacted() -> None:
    out = io.StringIO()
    log.setup("info", "json", out)
    try:
        raise ValueError("http://user:hunter2@h/")
    except ValueError:
        logging.getLogger("p2pcache.x").exception("failed")
    entry = json.loads(out.getvalue())
    assert "ValueError" in entry["trace"]
    assert "hunter2" not in entry["trace"]


async def test_garbage_from_strangers_leaves_no_trace() -> None:
    """The HTTP library would log each malformed request as an error of seven lines."""
    out = io.StringIO()
    log.setup("debug", "text", out)
    sock = server.listen_tcp("127.0.0.1:0")
    async with server.serving(server.make_app(), [sock]):
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(b"\x00\xffgarbage\r\n\r\n")
        assert b" 400 " in await reader.read()
        writer.close()
    assert out.getvalue() == ""


def test_values_that_are_kept_hidden_are_blanked() -> None:
    redaction.keep("s3cret/Value==\n", "short", None, "")
    for text in ("b's3cret/Value==\\n'", "x=s3cret%2FValue%3D%3D", "s3cret/Value=="):
        assert log.redact(text).count("***") == 1
        assert "cret" not in log.redact(text)
    assert log.redact("short") == "short"  # too little to guess at, and part of common words


def test_ids_of_keys_are_blanked_in_foreign_texts() -> None:
    redaction.keep_ids("models-of-us")
    assert redaction.hide_in_quotes("no key models-of-us") == "no key ***"
    assert log.redact("s3://models-of-us") == "s3://models-of-us"  # our own word


def test_a_storage_client_s_trace_is_not_shown() -> None:
    out = io.StringIO()
    log.setup("info", "text", out)
    for name in ("botocore.credentials", "p2pcache.x"):
        try:
            raise ValueError("a value of its own")
        except ValueError:
            logging.getLogger(name).warning("refresh failed", exc_info=True)
    first, second = out.getvalue().split("warning x:")
    assert "refresh failed\nValueError\n" in first
    assert "a value of its own" not in first
    assert "a value of its own" in second
