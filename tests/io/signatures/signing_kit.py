"""Keys and certificates to sign with, and the library's own command as an opponent."""

import datetime as dt
import subprocess
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


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


def library(*words: object) -> int:
    """The exit code of the library's own command."""
    command = [sys.executable, "-m", "model_signing", *map(str, words)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
