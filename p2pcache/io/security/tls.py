"""mTLS between members: certificates from files, contexts, reload without a restart.

TLS 1.3 only; both sides show a certificate of the cluster's CA. Host names are not checked, so that
agents may change their addresses: role and name in the certificate count
(`core.protocol.certificate_identity`). No session tickets: every connection proves itself anew.
"""

import logging
import os
import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from p2pcache.core.protocol.certificate_identity import Member, Role, of_uris
from p2pcache.core.ratelimit import Rate, RateCounter
from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io.security.cluster_key import check_secret_file

WARN_S = 14 * 86400.0  # before the certificate ends: two weeks for a person to notice
# Share of a certificate's time, at most, in which its end is warned of: what renews short certificates by itself mostly
# does so when a third is left.
WARN_SHARE = 0.25
WATCH_S = 10.0  # how often the files' times are looked at
REMIND_S = 86400.0  # how often an end that comes near is logged
LOG_LINES = Rate(0.1, 10)  # of refused strangers: they must not fill the log
NO_TLS = "WRONG_VERSION_NUMBER"  # OpenSSL's reason where an answer is no record of TLS
SPEAKS_NO_TLS = "it doesn't speak TLS"
_REASONS = {  # by the other side's alert: its cause, and what to do
    "CERTIFICATE_REQUIRED": "it demands a certificate; set --tls-cert, --tls-key and --tls-ca",
    "UNKNOWN_CA": "it doesn't know the CA of our certificate",
    "CERTIFICATE_EXPIRED": "our certificate has expired; issue a new one",
    "BAD_CERTIFICATE": "it doesn't accept our certificate",
    "UNSUPPORTED_CERTIFICATE": "our certificate isn't made for this purpose",
    "CERTIFICATE_UNKNOWN": "it doesn't accept our certificate",
    "PROTOCOL_VERSION": "it doesn't speak TLS 1.3",
    NO_TLS: f"{SPEAKS_NO_TLS}; set the --tls-* settings on both sides or none",
    "HTTP_REQUEST": "it speaks plain HTTP; use https://",
}

_log = logging.getLogger(__name__)


class TlsSettings(Protocol):
    """The settings of a daemon that this module reads."""

    @property
    def tls_cert(self) -> str:
        """PEM file of the certificate, with intermediate ones up to the CA."""

    @property
    def tls_key(self) -> str:
        """PEM file of its key."""

    @property
    def tls_ca(self) -> str:
        """PEM file of the cluster's CA, or several of them while one replaces another."""


class Loaded(NamedTuple):
    """Certificate and contexts from one reading of the files."""

    server: ssl.SSLContext
    visitors: ssl.SSLContext  # as `server`; a client may show no certificate
    client: ssl.SSLContext
    member: Member
    expires_at: float  # unix time
    warn_at: float  # from when on its end is warned of


class Tls:
    """A daemon's certificate. Invariant: the loaded one has passed every check that peers make."""

    def __init__(self, settings: TlsSettings, role: Role) -> None:
        """Load the files.

        Raises:
            UsageError, NotAllowed: they can't be used; says why.
        """
        self._files = (settings.tls_cert, settings.tls_key, settings.tls_ca)
        self._role = role
        self.trouble = ""  # why the present files are not in use; "": they are
        self._seen = self._stamp()
        self._loaded = load(*self._files, role)
        self._reminded_at = 0.0
        self.refused = 0  # visitors whose handshake failed
        self._lines = RateCounter(LOG_LINES)
        self.visitors = _LiveContext(self)

    @property
    def member(self) -> Member:
        """The member that our certificate names."""
        return self._loaded.member

    @property
    def expires_at(self) -> float:
        """When our certificate ends, unix time."""
        return self._loaded.expires_at

    @property
    def now(self) -> Loaded:
        """The contexts for new connections."""
        return self._loaded

    def reload(self) -> None:
        """Read the files again. If they can't be used, keep the loaded certificate and log an error."""
        self._seen = self._stamp()
        try:
            loaded = load(*self._files, self._role)
            if loaded.member != self.member:
                raise NotAllowed(
                    f"it names {loaded.member}, and this is {self.member}: restart to become another"
                )
        except P2PCacheError as error:
            self.trouble = f"the new certificate is not in use: {error}"
            _log.error("%s", self.trouble)
            return
        self.trouble = ""
        self._loaded = loaded
        _log.info("new certificate of %s, good until %s", loaded.member, _date(loaded.expires_at))

    async def watch(self) -> None:
        """Check the files: reload changed ones, warn of a certificate that expires soon."""
        if self._stamp() != self._seen:
            self.reload()
        now = time.time()
        if now - self._reminded_at > REMIND_S and (text := expiry_warning(self.now, now)):
            self._reminded_at = now
            _log.warning("%s", text)

    def refuse(self, why: str) -> None:
        """Count a client whose handshake failed, and log it unless too many were logged lately."""
        self.refused += 1
        if self._lines.allow(time.monotonic()):
            _log.warning("refused a TLS client: %s", why)

    def warnings(self) -> list[str]:
        """Warnings for the operator while everything still works."""
        texts = (self.trouble, expiry_warning(self.now, time.time()))
        return [text for text in texts if text]

    def _stamp(self) -> list[tuple[int, int, int]]:
        stamps = []
        for name in self._files:
            try:
                info = Path(name).stat()
                stamps.append((info.st_mtime_ns, info.st_ino, info.st_size))
            except OSError:
                stamps.append((0, 0, 0))
        return stamps


class _LiveContext(ssl.SSLContext):
    """For a server that takes one context for its whole life: each connection gets the newest."""

    tls: Tls

    def __new__(cls, tls: Tls) -> Self:
        """The protocol is what a server needs; the rest comes from the contexts behind it."""
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.tls = tls
        return context

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """As the newest context does."""
        made = self.tls.now.visitors.wrap_bio(*args, **kwargs)
        assert isinstance(made, _Visit)
        made.tls = self.tls
        return made


class _Visit(ssl.SSLObject):
    """A server's side of one connection: asyncio keeps to itself why a handshake failed."""

    tls: Tls | None = None

    def do_handshake(self) -> None:
        """As usual; a failure is counted with `Tls.refuse`."""
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            if self.tls is not None:
                self.tls.refuse(explain(error))
            raise


def open_tls(settings: TlsSettings, role: Role) -> Tls | None:
    """The certificate that the settings name; None: this daemon works without TLS.

    Raises:
        UsageError: some of the three settings are missing, or a file can't be used.
        NotAllowed: a file can't be read, or the certificate isn't for this role.
    """
    named = {n: getattr(settings, n) for n in ("tls_cert", "tls_key", "tls_ca")}
    missing = [f"--{name.replace('_', '-')}" for name, value in named.items() if not value]
    if len(missing) == len(named):
        return None
    if missing:
        raise UsageError(f"mTLS needs --tls-cert, --tls-key and --tls-ca; {missing[0]} is missing")
    return Tls(settings, role)


def load(cert: str, key: str, ca: str, role: Role) -> Loaded:
    """Read the files, and do a handshake with ourselves to see that peers will accept us.

    Raises:
        UsageError: a file isn't what it should be.
        NotAllowed: a file can't be read, the key is open to others, or the certificate is
            expired, of another CA or for another role.
    """
    _check_key(key)
    server = _context(ssl.PROTOCOL_TLS_SERVER, cert, key, ca)
    server.num_tickets = 0
    visitors = _context(ssl.PROTOCOL_TLS_SERVER, cert, key, ca)
    visitors.num_tickets = 0
    visitors.verify_mode = ssl.CERT_OPTIONAL
    visitors.sslobject_class = _Visit
    client = _context(ssl.PROTOCOL_TLS_CLIENT, cert, key, ca)
    try:
        seen = _rehearse(server, client) if role == "agent" else _rehearse(visitors, _bare(ca))
    except ssl.SSLCertVerificationError as error:
        raise NotAllowed(
            f"the certificate in {cert} is not good for the CA in {ca}: {error.verify_message}; "
            "make one with `p2pcache ca issue` and put it onto the same files"
        ) from None
    except ssl.SSLError as error:
        raise NotAllowed(f"the certificate in {cert} can't be used: {explain(error)}") from None
    member = member_of(seen)
    if not member.acts_as(role):
        raise NotAllowed(f"the certificate in {cert} is for {member}; this daemon is a {role}")
    begins, ends = (ssl.cert_time_to_seconds(seen[key]) for key in ("notBefore", "notAfter"))
    warn_at = ends - min(WARN_S, WARN_SHARE * (ends - begins))
    return Loaded(server, visitors, client, member, float(ends), warn_at)


def member_of(certificate: Any) -> Member:
    """The member that a verified certificate names (`getpeercert()`; None: there was none).

    Raises:
        NotAllowed: no certificate, or not one of ours.
    """
    if not certificate:
        raise NotAllowed("members show a certificate here; set --tls-cert, --tls-key and --tls-ca")
    names = certificate.get("subjectAltName", ())
    return of_uris(value for kind, value in names if kind == "URI")


def check_role(certificate: Any, role: Role) -> Member:
    """As `member_of`, and it acts as that role.

    Raises:
        NotAllowed: no certificate, not one of ours, or of another role.
    """
    member = member_of(certificate)
    if not member.acts_as(role):
        raise NotAllowed(f"it shows the certificate of {member}, where {role}s belong")
    return member


_CLOCK_CODES = (9, 10)  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED
# OpenSSL's codes of a certificate, or a chain, whose end isn't among our CAs. One that signed itself (18) is no
# member's: a CA makes theirs.
_ISSUER_CODES = (19, 20, 21)


def explain(error: BaseException) -> str:
    """One line about a failed TLS connection, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = ""
        if error.verify_code in _CLOCK_CODES:
            advice = "; look at the clocks of both"
        elif error.verify_code in _ISSUER_CODES:
            advice = "; if it is a member, tls_ca here lacks its CA"
        return f"its certificate is not good: {error.verify_message}{advice}"
    reason = str(getattr(error, "reason", None) or "")
    for ending, text in _REASONS.items():
        if reason.endswith(ending):
            return text
    return str(error) or type(error).__name__


def expiry_warning(loaded: Loaded, now: float) -> str:
    """The warning for a certificate that ends soon; "" while there is time."""
    if now < loaded.warn_at:
        return ""
    days = (loaded.expires_at - now) / 86400
    when = "has expired" if days <= 0 else f"ends in {days:.1f} days"
    return f"this node's certificate {when} ({_date(loaded.expires_at)}); issue a new one and replace the files"


def _context(protocol: Any, cert: str, key: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ValueError) as error:
        raise _unreadable(ca, "CA certificates", error) from None
    if not cert:
        return context
    try:  # without a password callback OpenSSL would ask on the terminal
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise _unreadable(f"{cert} and {key}", "a certificate and its key", error) from None
    return context


def _bare(ca: str) -> ssl.SSLContext:
    """A client without a certificate."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, "", "", ca)


def _unreadable(path: str, what: str, error: Exception) -> P2PCacheError:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        reason = str(getattr(error, "reason", "") or "not PEM").lower().replace("_", " ")
        return UsageError(f"{path}: not {what} in PEM form ({reason})")
    return NotAllowed(f"can't read {path}: {error.strerror}")


def _check_key(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise NotAllowed(f"can't read the TLS key {path}: {error.strerror}") from None
    try:
        check_secret_file(path, os.fstat(fd), "the TLS key")
    finally:
        os.close(fd)


def _rehearse(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """A handshake in memory; the certificate that the server showed, as the client verified it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_side=False),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(3):  # hello, the server's flight, the client's
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    shown = ends[0].getpeercert()
    assert shown is not None, "the client demanded it"
    return dict(shown)


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
