"""A small certificate authority for one cluster, in a directory: `p2pcache ca`.

Needs the package `cryptography` (the extra `ca`). Nodes do without it: they only use certificates.
"""

import contextlib
import datetime as dt
import ipaddress
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.protocol.certificate_identity import PREFIX, Member, Role, is_name
from p2pcache.errors import Conflict, NotAllowed, NotFound, UsageError
from p2pcache.io.security.cluster_key import check_secret_file

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise UsageError("a CA needs the package 'cryptography': pip install cryptography") from None

CA_DAYS = 3650
DAYS = 365
SKEW = dt.timedelta(hours=1)  # clocks of nodes that run behind
_DAY = dt.timedelta(days=1)
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_USES: dict[Role, list[x509.ObjectIdentifier]] = {
    "agent": [_SERVER, _CLIENT],
    "pusher": [_SERVER, _CLIENT],
    "tracker": [_SERVER],  # it dials no member
}


class Issued(NamedTuple):
    """Where a certificate and its key lie."""

    cert: Path
    key: Path
    member: Member
    expires: dt.datetime


def init(folder: Path, *, cluster: str, days: float = CA_DAYS) -> Path:
    """Make a CA in a new or empty directory; returns the path of its certificate.

    Raises:
        UsageError: the name or the time is no good.
        Conflict: there is one already.
        NotAllowed: the directory can't be written.
    """
    if not is_name(cluster):
        raise UsageError(f"not a cluster's name: {cluster!r}; use letters, digits, '.', '_', '-'")
    now = _now()
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"p2pcache {cluster}")
    usage = _usage(sign=False)
    built = (
        _builder(name, name, key.public_key(), now, now + _days(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    with _said(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _write(folder, "ca", key, built)[0]


def issue(
    folder: Path,
    name: str,
    *,
    role: Role,
    hosts: Sequence[str] = (),
    days: float = DAYS,
    out: Path | None = None,
) -> Issued:
    """Make a key and a certificate for one member.

    Args:
        folder: of the CA.
        name: of the member; node ids are bound to it.
        role: what it may be.
        hosts: names and addresses for clients that check them (curl, Prometheus, browsers).
        days: how long it is good; never longer than the CA.
        out: directory for the two files; default: the CA's.

    Raises:
        UsageError: a name, a host or the time is no good.
        NotFound: no CA there.
        NotAllowed: a file can't be read or written.
        Conflict: the files exist.
    """
    if not is_name(name) or name == "ca":
        raise UsageError(
            f"not a member's name: {name[:90]!r}; use up to 80 letters, digits, '.', '_', '-'"
        )
    ca_key, ca = _load(folder)
    member, now = Member(role, name), _now()
    expires = min(now + _days(days), ca.not_valid_after_utc)
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.UniformResourceIdentifier(member.uri), *(_host(h) for h in hosts)]
    built = (
        _builder(_name(name), ca.subject, key.public_key(), now, expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USES[role]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    target = out or folder
    with _said(target):
        if out is not None:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
        cert_path, key_path = _write(target, name, key, built)
    return Issued(cert_path, key_path, member, expires)


def _load(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        with (folder / "ca.key").open("rb") as file:
            check_secret_file(str(folder / "ca.key"), os.fstat(file.fileno()), "the CA's key")
            key = serialization.load_pem_private_key(file.read(), None)
        cert = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except FileNotFoundError:
        raise NotFound(f"no CA in {folder}; make one with: p2pcache ca init {folder}") from None
    except OSError as error:
        raise NotAllowed(f"can't read the CA in {folder}: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"what lies in {folder} is not a CA of 'p2pcache ca init': {error}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != cert.public_key():
        raise UsageError(f"{folder}/ca.key doesn't belong to {folder}/ca.pem")
    if cert.not_valid_after_utc <= _now():
        raise NotAllowed(f"the CA in {folder} has expired; make a new one in another directory")
    return key, cert


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    until: dt.datetime,
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - SKEW, until
    )


def _usage(*, sign: bool) -> x509.KeyUsage:
    """`sign`: of a member; else of the CA."""
    return x509.KeyUsage(
        digital_signature=sign, key_cert_sign=not sign, crl_sign=not sign,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _write(
    folder: Path, name: str, key: ec.EllipticCurvePrivateKey, cert: x509.Certificate
) -> tuple[Path, Path]:
    """Write both files, the key first; an existing one is never replaced."""
    cert_path, key_path = folder / f"{name}.pem", folder / f"{name}.key"
    for path in (cert_path, key_path):
        if path.exists():
            raise Conflict(f"{path} exists and is never overwritten; choose another directory")
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files = ((key_path, secret, 0o600), (cert_path, cert.public_bytes(pem), 0o644))
    for path, data, mode in files:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)  # whatever the umask says
            file.write(data)
            file.flush()
            os.fsync(fd)
    return cert_path, key_path


@contextlib.contextmanager
def _said(folder: Path) -> Iterator[None]:
    """Foreign errors of writing, in our words."""
    try:
        yield
    except FileExistsError as error:
        raise Conflict(f"{error.filename} exists and is never overwritten") from None
    except OSError as error:
        raise NotAllowed(f"can't write to {folder}: {error.strerror}") from None


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        if not text or "/" in text or ":" in text or text.startswith(PREFIX):
            raise ValueError
        return x509.DNSName(text)
    except ValueError:
        raise UsageError(f"not a host: {text!r}; expected a name or an address") from None


def _days(days: float) -> dt.timedelta:
    if not 0 < days <= CA_DAYS * 3:
        raise UsageError(f"a certificate is good for more than 0 and at most {CA_DAYS * 3} days")
    return days * _DAY


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC).replace(microsecond=0)
