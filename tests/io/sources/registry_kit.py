"""A real registry (Debian's docker-registry), filled by skopeo; and the token server that it sends people to."""

import base64
import contextlib
import hashlib
import http.server
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from loadtest.kit.registry import LOGIN, have_registry
from p2pcache.core.format.manifest import Chunk, make_file
from p2pcache.core.format.oci.model_pack import make_artifact
from tests.io.sources.kit import answering

HAVE_REGISTRY = have_registry()
needs_registry = pytest.mark.skipif(
    not HAVE_REGISTRY, reason="needs docker-registry and skopeo (make tools)"
)
_HTPASSWD = "user:$2y$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O\n"


def pack(folder: Path, files: dict[str, bytes]) -> Path:
    """A ModelPack artifact of these files as skopeo's `dir:`."""
    folder.mkdir()
    artifact = make_artifact(
        make_file(
            path, [Chunk(len(data), bytes(32))] if data else [], hashlib.sha256(data).digest()
        )
        for path, data in sorted(files.items())
    )
    (folder / "version").write_text("Directory Transport Version: 1.1\n")
    (folder / "manifest.json").write_bytes(artifact.manifest)
    for data in (artifact.config, *files.values()):
        (folder / hashlib.sha256(data).hexdigest()).write_bytes(data)
    return folder


def password_auth(tmp: Path) -> dict[str, Any]:
    """Settings of a registry that wants a password."""
    (tmp / "htpasswd").write_text(_HTPASSWD)
    return {"htpasswd": {"realm": "here", "path": str(tmp / "htpasswd")}}


class TokenServer:
    """Gives tokens that a real registry takes: for pulls to everybody who is asked about, for pushes with the login."""

    def __init__(self, tmp: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self._key.public_key())
            .serial_number(1).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        self._certificate = made.public_bytes(serialization.Encoding.DER)
        (tmp / "tokens.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        self.asked: list[tuple[str, bool]] = []  # scopes, and whether the login came
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server._answer(self)

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.auth = {
            "token": {
                "realm": f"http://127.0.0.1:{self._server.server_address[1]}/token", "service": "here",
                "issuer": "tokens", "rootcertbundle": str(tmp / "tokens.pem"),
            }
        }  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Iterator["TokenServer"]:
        """Answer for the length of the block."""
        with answering(self._server):
            yield self

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        query = parse_qs(urlsplit(request.path).query)
        expected = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
        known = request.headers.get("Authorization") == expected
        scopes = [scope for text in query.get("scope", []) for scope in text.split()]
        self.asked += [(scope, known) for scope in scopes]
        body = json.dumps({"token": self._token(scopes if known else [])}).encode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _token(self, scopes: list[str]) -> str:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        access = [
            dict(zip(("type", "name"), scope.split(":")[:2], strict=True))
            | {"actions": scope.rpartition(":")[2].split(",")}
            for scope in scopes
        ]
        now = int(time.time())
        head = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(self._certificate).decode()]}
        claims = {
            "iss": "tokens", "sub": "user", "aud": "here", "exp": now + 60, "nbf": now - 5, "iat": now, "jti": "1",
            "access": access,
        }  # fmt: skip
        text = f"{_b64(json.dumps(head).encode())}.{_b64(json.dumps(claims).encode())}"
        r, s = utils.decode_dss_signature(self._key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_b64(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
