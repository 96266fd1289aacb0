"""Keys, certificates and identities to sign with, and the library's own command as an opponent."""

import base64
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM
ISSUER = "https://login.example"
NAME = "https://git.example/acme/models/.ci/release.yml@refs/heads/main"
_MOCK = Path(__file__).with_name("mock_sigstore.cjs")
_TOOLS = Path(__file__).parents[3] / ".tools/sigstore"


def make_key(folder: Path, name: str = "team") -> tuple[Path, Path]:
    """Files of a private and its public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(
        PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ))  # fmt: skip
    public.write_bytes(key.public_key().public_bytes(
        PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ))  # fmt: skip
    return private, public


def make_certificates(folder: Path, name: str) -> tuple[Path, Path, Path]:
    """Files of a private key, its certificate, and the authority that made it."""
    private, _ = make_key(folder, name)
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    root = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate(
        f"{name} authority", root.public_key(), f"{name} authority", root, ca=True
    )
    leaf = _certificate(name, key.public_key(), f"{name} authority", root, ca=False)
    paths = folder / f"{name}.crt", folder / f"{name}-ca.crt"
    for path, one in zip(paths, (leaf, authority), strict=True):
        path.write_bytes(one.public_bytes(PEM))
    return private, *paths


def _certificate(
    name: str, key: ec.EllipticCurvePublicKey, issuer: str, by: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.Certificate:  # fmt: skip
    now = dt.datetime.now(dt.UTC)
    usage = x509.KeyUsage(
        digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    return (
        x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key)
        .serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True).sign(by, hashes.SHA256())
    )  # fmt: skip


@contextmanager
def private_sigstore(folder: Path) -> Iterator[Path]:
    """A running Sigstore that we didn't write; yields the file of its trust configuration."""
    node = shutil.which("node")
    if node is None or not list(_TOOLS.glob("*.done")):
        pytest.skip("needs node and @sigstore/mock (make sigstore)")
    environ = os.environ | {"NODE_PATH": str(_TOOLS / "node_modules")}
    pipe = subprocess.PIPE  # it ends when its input does, so it doesn't outlive us
    with subprocess.Popen([node, _MOCK], stdin=pipe, stdout=pipe, env=environ) as server:
        try:
            assert server.stdout is not None
            told = server.stdout.readline()
            if not told:
                pytest.skip(f"@sigstore/mock doesn't run by {node}")
            trust = folder / "trust.json"
            trust.write_bytes(told)
            yield trust
        finally:
            server.kill()


def make_token(folder: Path, name: str = NAME, issuer: str = ISSUER, **claims: object) -> Path:
    """A file with what an identity provider says of `name`; a mock doesn't check its signature."""
    now = int(time.time())
    body = {"aud": "sigstore", "iat": now, "exp": now + 600, "iss": issuer, "sub": name} | claims
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()) for one in ({"alg": "none"}, body)]
    path = folder / "token"
    path.write_text(".".join(part.rstrip(b"=").decode() for part in parts) + ".\n")
    return path


def library(*words: object) -> int:
    """The exit code of the library's own command."""
    command = [sys.executable, "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
