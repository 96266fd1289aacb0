"""Causes of errors of HTTP and TLS libraries, in our own words.

Libraries wrap each other's errors and quote their input, headers with keys included. So only error
numbers, kinds and OpenSSL's text about a certificate are taken from them.
"""

import http.client
import os
import re
import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import urllib3.exceptions
from botocore import exceptions as boto
from urllib3.util.ssl_match_hostname import CertificateError

from p2pcache.errors import NotAllowed, OriginUnavailable, P2PCacheError, UsageError
from p2pcache.io.log import redact
from p2pcache.io.redaction import hide_in_quotes
from p2pcache.io.security.tls import NO_TLS, SPEAKS_NO_TLS

MAX_CHARS = 300  # of a library's or server's text in one message

_TRANSPORT = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
_STALLED = (
    boto.ReadTimeoutError,
    boto.ConnectTimeoutError,
    urllib3.exceptions.TimeoutError,
    TimeoutError,
)
# OpenSSL's numbers for a certificate: not valid yet, expired; for another host name, address.
_WHEN, _WHOSE = (9, 10), (62, 64)
_UNTAKEN = ("CERTIFICATE", "UNKNOWN_CA", "BAD_CERT", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION")
_FILES = ("AWS_CA_BUNDLE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
_HEADER = re.compile(r"(?i)invalid header|illegal header|not a legal header")
_URL_QUERY = re.compile(r"(?<=[\w/])\?[^\s'\"<>]*=[^\s'\"<>]*")


def one_line(text: object) -> str:
    """A text of a server or a library as one line, without control characters and known secrets."""
    shown = _URL_QUERY.sub("?***", redact(hide_in_quotes(" ".join(str(text).split()))))
    return "".join(c for c in shown if c.isprintable())[:MAX_CHARS]


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, the outermost first."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        kwargs = getattr(one, "kwargs", None)
        inside = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        inside += kwargs.values() if isinstance(kwargs, dict) else ()
        waiting += [other for other in inside if isinstance(other, BaseException)]


def explain(error: Exception, what: str, endpoint: str) -> P2PCacheError | None:
    """The error of our tree for one of the transport, a certificate or a file; None: none of these.

    Args:
        error: from a call of the client, or a read of a body.
        what: the object's URL, or the attempted action.
        endpoint: URL of the server, without secrets.
    """
    asked = _endpoint_of(error, endpoint)
    found = list(causes(error))
    return (
        _certificate(found, asked)
        or _file(found, what)
        or _header(found, what)
        or (_transport(error, found, what, asked) if isinstance(error, _TRANSPORT) else None)
    )


def _endpoint_of(error: Exception, endpoint: str) -> str:
    """The server of the failed request: credentials come from other servers than objects."""
    url = getattr(error, "kwargs", {}).get("endpoint_url")
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else endpoint
    except ValueError:
        return endpoint


def _certificate(found: list[BaseException], asked: str) -> P2PCacheError | None:
    for one in found:
        if isinstance(one, CertificateError):  # a ValueError of urllib3's
            return _wrong_name(asked, one_line(one))
        if isinstance(one, ssl.SSLCertVerificationError):
            said = one_line(one.verify_message)
            if one.verify_code in _WHOSE:
                return _wrong_name(asked, said)
            if one.verify_code in _WHEN:
                return NotAllowed(
                    f"the certificate of {asked} isn't valid now ({said}); renew it, or set this "
                    "machine's clock"
                )
            return NotAllowed(
                f"the certificate of {asked} isn't trusted ({said}); set AWS_CA_BUNDLE to the file of "
                "its CA"
            )
        if isinstance(one, ssl.SSLError) and _alert(one):
            return NotAllowed(
                f"{asked} refuses our TLS connection ({one.reason}); ask its operator which "
                "certificates and versions it takes"
            )
    return None


def _wrong_name(asked: str, said: str) -> NotAllowed:
    return NotAllowed(
        f"the certificate of {asked} is for another name ({said}); set AWS_ENDPOINT_URL to a name "
        "that stands in it"
    )


def _alert(error: ssl.SSLError) -> bool:
    reason = error.reason or ""
    return "ALERT" in reason and any(word in reason for word in _UNTAKEN)


def _file(found: list[BaseException], what: str) -> P2PCacheError | None:
    for one in found:
        named = isinstance(one, OSError) and one.filename is not None
        unreadable = isinstance(one, PermissionError | IsADirectoryError | NotADirectoryError)
        if isinstance(one, FileNotFoundError) or (named and unreadable):
            assert isinstance(one, OSError)
            path = one_line(one.filename) if named else ""
            return NotAllowed(
                f"{what}: {one.strerror}: {path or _missing_files()}; the S3 settings name that file "
                "(AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CA_BUNDLE or the profile): mount it, or unset them"
            )
        if isinstance(one, ssl.SSLError) and one.reason == "NO_CERTIFICATE_OR_CRL_FOUND":
            return NotAllowed(f"{what}: AWS_CA_BUNDLE names a file without a certificate in PEM")
    return None


def _missing_files() -> str:
    """Names of the variables whose files are missing."""
    missing = [name for name in _FILES if (path := os.environ.get(name)) and not _there(path)]
    return f"what {' and '.join(missing)} names" if missing else "a file"


def _there(path: str) -> bool:
    return os.access(path, os.R_OK)


def _header(found: list[BaseException], what: str) -> P2PCacheError | None:
    for one in found:
        if isinstance(one, ValueError) and _HEADER.search(str(one)):
            return NotAllowed(
                f"{what}: the credentials or the region hold a line break or another control character; "
                "write them anew, without"
            )
    return None


def _transport(
    error: Exception, found: list[BaseException], what: str, asked: str
) -> P2PCacheError:
    if isinstance(error, boto.ProxyConnectionError):
        return OriginUnavailable(
            f"{what}: the proxy on the way to {asked} can't be used: {_reason(found)}; check HTTPS_PROXY, "
            "HTTP_PROXY and NO_PROXY"
        )
    if isinstance(error, _STALLED):
        return OriginUnavailable(f"{what}: {asked} stalled; check that it can be reached from here")
    return OriginUnavailable(
        f"{what}: {asked}: {_reason(found)}; check that it is right and can be reached from here"
    )


def _reason(found: list[BaseException]) -> str:
    for one in found:
        if isinstance(one, socket.gaierror):
            return f"its name can't be resolved ({one_line(one.strerror)})"
        if isinstance(one, ssl.SSLError):
            if one.reason == NO_TLS:
                return f"{SPEAKS_NO_TLS}, perhaps plain HTTP (http://)"
            return f"TLS failed ({one.reason or type(one).__name__})"
        if isinstance(one, OSError) and one.errno:
            return os.strerror(one.errno)
    names = [type(one).__name__ for one in found if not isinstance(one, boto.HTTPClientError)]
    return f"the connection broke ({names[-1] if names else type(found[0]).__name__})"


def misused(error: Exception, what: str) -> P2PCacheError:
    """The error for a setting that botocore refuses; only its kind is shown, for its text quotes values."""
    if isinstance(error, boto.ParamValidationError) and "WebIdentityToken" in str(error):
        return NotAllowed(f"{what}: AWS_WEB_IDENTITY_TOKEN_FILE names a file without a token")
    if isinstance(
        error, boto.ProfileNotFound | boto.ParamValidationError | boto.InvalidRegionError
    ):
        return UsageError(f"{what}: {one_line(error)}")
    if isinstance(error, boto.ConfigParseError):
        return UsageError(
            f"{what}: {one_line(error.kwargs.get('path'))} isn't a file of profiles; save it as plain "
            "UTF-8, without a byte order mark, with [NAME] above its settings"
        )
    if isinstance(error, ValueError) and str(error).startswith("Invalid endpoint"):
        return UsageError(f"{what}: the endpoint isn't a URL; check AWS_ENDPOINT_URL")
    if isinstance(error, ValueError):
        kind = type(error).__name__
        return UsageError(
            f"{what}: a setting can't be understood ({kind}); check AWS_ENDPOINT_URL, AWS_REGION and "
            "the files of the profile"
        )
    return P2PCacheError(f"{what}: the S3 client failed ({type(error).__name__})")
