"""What lies under errors of HTTP and TLS: missing files and wrong certificates are named."""

import datetime as dt
import ipaddress
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from p2pcache.errors import NotAllowed, OriginUnavailable, UsageError
from p2pcache.io.origins import open_origin
from tests.io.origins.s3.stub import ABSENT, AT_ONCE_S, PATIENT, QUICK, stub


def test_a_missing_token_file_is_named(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_env.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/r")
    clean_env.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    began = time.monotonic()
    with pytest.raises(NotAllowed, match=r"/token; .*AWS_WEB_IDENTITY_TOKEN_FILE"):
        open_origin("s3://models", PATIENT).get("x", limit=1)
    assert time.monotonic() - began < AT_ONCE_S


def test_a_profile_with_a_byte_order_mark_is_named(
    clean_env: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = A\n", encoding="utf-8-sig")
    clean_env.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    with pytest.raises(UsageError, match=f"{path} isn't .*without a byte order mark"):
        open_origin("s3://models")


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


def test_a_server_without_tls_is_called_so(keys: pytest.MonkeyPatch) -> None:
    with stub({"GET": ABSENT}) as (endpoint, _):
        keys.setenv("AWS_ENDPOINT_URL", endpoint.replace("http://", "https://"))
        with pytest.raises(OriginUnavailable, match=r"it doesn't speak TLS, perhaps plain HTTP"):
            open_origin("s3://models", QUICK).get("x", limit=1)
