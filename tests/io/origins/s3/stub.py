"""An S3 endpoint of a few lines, and what tests of S3 origins share."""

import http.server
import ssl
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from p2pcache.io.origins import OriginSettings

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


class Stub(http.server.BaseHTTPRequestHandler):
    """An S3 endpoint of a few lines: `answers` maps a method to (status, headers, body)."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}
    seen: ClassVar[list[tuple[str, str, dict[str, str]]]] = []

    def _any(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.seen.append((self.command, self.path, dict(self.headers)))
        key = self.path.partition("?")[0]
        status, headers, body = self.answers.get(key) or self.answers[self.command]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - http.server calls them so

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def stub(
    answers: dict[str, tuple[int, dict[str, str], bytes]],
    tls: tuple[Path, Path] | None = None,
    kind: type[Stub] = Stub,
) -> Iterator[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """Run a stub; yields its URL and the requests it saw."""
    handler: Any = type("Handler", (kind,), {"answers": answers, "seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    scheme = "https" if tls else "http"
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}", handler.seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown(error: BaseException) -> str:
    """All that a log may ever show of an error."""
    return str(error) + "".join(traceback.format_exception(error))
