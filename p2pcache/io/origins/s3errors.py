"""What botocore's and http.client's exceptions mean to us. The one place of translation for S3."""

import http.client
import os

import urllib3.exceptions
from botocore import exceptions as boto

from p2pcache.errors import (
    Conflict,
    NoSpace,
    NotAllowed,
    NotFound,
    OriginChanged,
    OriginUnavailable,
    P2PCacheError,
    UsageError,
)
from p2pcache.io.log import redact
from p2pcache.io.origins.base import NoContainer

FOREIGN: tuple[type[Exception], ...] = (
    boto.BotoCoreError,
    boto.ClientError,
    boto.HTTPClientError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ValueError,  # botocore's "Invalid endpoint", http.client's reads of a closed response
)
"""Everything that a call of the client or a read of a body may raise."""

_TRANSPORT = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    boto.ResponseStreamingError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
)
_SKEW = ("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture")
# With status 400, as if the request were malformed.
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired")
_WRONG_KEY = ("InvalidAccessKeyId", "SignatureDoesNotMatch")
_BUSY = ("SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "InternalError")
_FULL = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage")
_MOVED = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")


def translate(error: Exception, what: str, bucket: str, endpoint: str) -> P2PCacheError:
    """The error of our tree for a foreign one.

    Args:
        error: one of `FOREIGN`.
        what: the object's URL, or what was tried.
        bucket: its name.
        endpoint: where the client talks to.
    """
    endpoint = redact(endpoint)  # our messages reach everybody who may look at a daemon
    if isinstance(error, boto.ClientError):
        return _refused(error, what, bucket, endpoint)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return NotAllowed(f"no S3 credentials found; looked at {looked_at()}")
    if isinstance(error, boto.CredentialRetrievalError):
        return NotAllowed(f"S3 credentials can't be had ({_one_line(error)}); {looked_at()}")
    if isinstance(
        error, boto.ProfileNotFound | boto.ParamValidationError | boto.InvalidRegionError
    ):
        return UsageError(f"{what}: {_one_line(error)}")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return NotAllowed(
            f"the certificate of {endpoint} isn't trusted ({_one_line(error)}); "
            "set AWS_CA_BUNDLE to the file of its CA"
        )
    if isinstance(
        error, boto.ReadTimeoutError | TimeoutError | urllib3.exceptions.ReadTimeoutError
    ):
        return OriginUnavailable(f"{what}: {endpoint} stalled")
    if isinstance(error, _TRANSPORT):
        advice = f"check that {endpoint} is right and can be reached from here"
        return OriginUnavailable(f"{what}: {_one_line(error)}; {advice}")
    if isinstance(error, ValueError):
        return UsageError(f"{what}: {_one_line(error)}; check AWS_ENDPOINT_URL")
    return P2PCacheError(f"{what}: {_one_line(error)}")


def looked_at() -> str:
    """Where credentials are looked for, with what is set there: names, never values."""
    places = [
        f"{name} ({'set' if os.environ.get(name) else 'not set'})"
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE")
    ]
    profile = os.environ.get("AWS_PROFILE", "default")
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    return (
        f"{', '.join(places)}, profile {profile!r} in {file}, and the container's or instance's "
        "role; for a public bucket set P2PCACHE_S3_UNSIGNED=1"
    )


def _refused(error: boto.ClientError, what: str, bucket: str, endpoint: str) -> P2PCacheError:
    """The server answered, with an error status."""
    answer = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = str(answer.get("Error", {}).get("Code", status))
    said = _one_line(f"{code}: {answer.get('Error', {}).get('Message', '')}")
    if code == "NoSuchBucket":
        return NoContainer(f"no bucket {bucket!r} at {endpoint}; create it, or check the URL")
    if code in _SKEW:
        return NotAllowed(
            f"this machine's clock is too far from that of {endpoint} ({said}); synchronise it (NTP)"
        )
    if code in _EXPIRED:
        return NotAllowed(f"the S3 credentials have expired ({said}): renew them; {_source()}")
    if code in _WRONG_KEY:
        return NotAllowed(f"{endpoint} doesn't take the S3 credentials ({said}); {_source()}")
    if code in _FULL or status == 507:
        return NoSpace(f"{endpoint} is full ({said})")
    if code in _MOVED or status in (301, 307):
        return UsageError(
            f"bucket {bucket!r} is in another region ({said}); set AWS_REGION to its region"
        )
    if code in _BUSY or status in (408, 429) or (status >= 500 and status != 501):
        return OriginUnavailable(f"{what}: {endpoint} answers {status} {said}")
    if status in (401, 403):
        return NotAllowed(_denied(what, said))
    if status == 404:
        return NotFound(f"{what} doesn't exist")
    if status in (409, 412):
        return Conflict(f"{what} was changed by somebody else ({said})")
    if status == 416:
        return OriginChanged(f"{what} is smaller than what was pushed; push it again")
    return P2PCacheError(f"{what}: {endpoint} refuses with {status} {said}")


def _denied(what: str, said: str) -> str:
    return (
        f"S3 doesn't allow {what} ({said}); {_source()}. "
        "A missing object looks the same to those who may not list the bucket"
    )


def _source() -> str:
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return "the credentials are AWS_ACCESS_KEY_ID of the environment"
    return f"the credentials are what {looked_at()} gave"


def _one_line(text: object) -> str:
    """Servers and libraries write these words: one line, no control characters, no password of a URL."""
    return "".join(c for c in " ".join(redact(str(text)).split()) if c.isprintable())[:300]
