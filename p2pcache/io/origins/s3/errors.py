"""Translation of botocore's and http.client's exceptions into our errors, for S3 in this one place."""

import http.client
import os
from typing import Any
from urllib.parse import urlsplit

import urllib3.exceptions
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

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
from p2pcache.io.origins.causes import explain, misused, one_line


class NotStorage(ValueError):
    """Somebody else answered in the storage's place; the text says with what."""


FOREIGN: tuple[type[Exception], ...] = (
    boto.BotoCoreError,
    boto.ClientError,
    boto.HTTPClientError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    OSError,
    ResponseParserError,
    ValueError,  # botocore's "Invalid endpoint", http.client's reads of a closed response
)
"""Everything that a call of the client or a read of a body may raise."""

_SKEW = ("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture")
# With status 400, as if the request were malformed.
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")
_WRONG_KEY = (
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId",
    "InvalidIdentityToken", "UnrecognizedClientException", "IncompleteSignature", "AuthFailure",
    "InvalidSecurity", "MissingSecurityHeader", "MissingAuthenticationToken", "NotSignedUp",
)  # fmt: skip
_BUSY = (
    "SlowDown", "SlowDownRead", "SlowDownWrite", "ServiceUnavailable", "RequestTimeout", "InternalError",
    "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "RequestLimitExceeded", "BandwidthLimitExceeded", "TooManyRequests",
    "TooManyRequestsException", "LimitExceededException", "PriorRequestNotComplete",
    "IDPCommunicationError",
)  # fmt: skip
# Other bytes came than were sent: their sum or hash is another one. InvalidDigest is Garage's word for it.
_DAMAGED = (
    "BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch",
    "ContentChecksumMismatch", "InvalidDigest",
)  # fmt: skip
_FULL = ("XMinioStorageFull", "QuotaExceeded", "InsufficientStorage")
_MOVED = ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException")
_GIVES_CREDENTIALS = (
    "AssumeRole", "AssumeRoleWithWebIdentity", "AssumeRoleWithSAML", "GetRoleCredentials", "CreateToken",
    "GetSessionToken", "CreateOAuth2Token",
)  # fmt: skip
_NO_CREDENTIALS = (boto.NoCredentialsError, boto.PartialCredentialsError, boto.NoAuthTokenError)
_SIGN_IN = (boto.SSOError, boto.TokenRetrievalError)


def translate(error: Exception, what: str, bucket: str, endpoint: str) -> P2PCacheError:
    """The error of our tree for a foreign one. Its text quotes a server only through `one_line`.

    Args:
        error: one of `FOREIGN`.
        what: the object's URL, or the attempted action.
        bucket: its name.
        endpoint: URL of the server.
    """
    endpoint = redact(endpoint)  # every caller of a daemon may read our messages
    if isinstance(error, boto.ClientError):
        return _refused(error, what, bucket, endpoint)
    if isinstance(error, NotStorage | ResponseParserError):
        came = str(error) if isinstance(error, NotStorage) else "something that isn't S3's"
        return NotAllowed(
            f"{what}: {endpoint} answers with {came}, as a login page or a proxy does; log in there, or set "
            "AWS_ENDPOINT_URL to the storage itself"
        )
    if isinstance(error, _NO_CREDENTIALS):
        return NotAllowed(f"no S3 credentials found; looked at {looked_at()}")
    if isinstance(error, boto.CredentialRetrievalError):
        provider = one_line(error.kwargs.get("provider", "their provider"))
        return NotAllowed(f"S3 credentials can't be had from {provider}; {looked_at()}")
    if isinstance(error, _SIGN_IN):
        return NotAllowed(f"{what}: the sign-in has ended; run `aws sso login` again")
    return explain(error, what, endpoint) or misused(error, what)


def refuse_strangers(response_dict: dict[str, Any], **_: object) -> None:
    """Refuse an answer that no storage gives. To be called by botocore before it parses an answer.

    A gateway's login page with status 200 would otherwise pass for an object, and a push for done.

    Raises:
        NotStorage: a web page, or a redirect that isn't S3's.
    """
    status, headers = int(response_dict["status_code"]), response_dict["headers"]
    if 200 <= status < 300 and str(headers.get("content-type", "")).startswith("text/html"):
        body = response_dict.get("body")
        if body is not None and hasattr(body, "close"):
            body.close()
        raise NotStorage("a web page")
    if 300 <= status < 400 and "x-amz-bucket-region" not in headers:
        if b"<Error" in response_dict["body"]:  # S3's own: another region, for example
            return
        place = one_line(urlsplit(str(headers.get("location", ""))).hostname or "another page")
        raise NotStorage(f"a redirect to {place}")


def about_credentials(error: Exception) -> bool:
    """Whether the request could succeed with other credentials."""
    if isinstance(error, boto.ClientError):
        # Answers to HEAD have no code, and an expired token comes with 400.
        code, status = _code(error)
        return code not in _SKEW + _BUSY + _DAMAGED and status in (400, 401, 403)
    return isinstance(error, (*_NO_CREDENTIALS, boto.CredentialRetrievalError, *_SIGN_IN))


def came_damaged(error: boto.ClientError) -> bool:
    """Whether the storage refuses a body, since it has another sum than it was sent with."""
    return _code(error)[0] in _DAMAGED


def says_why(error: boto.ClientError) -> bool:
    """Whether a refusal has a code: answers to HEAD have none."""
    return not _code(error)[0].isdigit()


def looked_at() -> str:
    """Places where credentials are looked for, and which of them are set: names, never values."""
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


def _code(error: boto.ClientError) -> tuple[str, int]:
    answer = error.response
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return str(answer.get("Error", {}).get("Code", status)), status


def _refused(error: boto.ClientError, what: str, bucket: str, endpoint: str) -> P2PCacheError:
    """The server answered, with an error status."""
    code, status = _code(error)
    message = error.response.get("Error", {}).get("Message", "")  # signed URLs have none
    said = one_line(f"{code}: {message}" if message else code)
    if code in _BUSY or status in (408, 429) or (status >= 500 and status not in (501, 507)):
        given = error.operation_name in _GIVES_CREDENTIALS
        who = (
            f"the service that gives S3 credentials ({error.operation_name})" if given else endpoint
        )
        return OriginUnavailable(f"{what}: {who} answers {status} {said}")
    if code in _DAMAGED:
        return OriginUnavailable(f"{what}: the bytes came damaged to {endpoint} ({said})")
    if code in _FULL or status == 507:
        return NoSpace(f"{endpoint} is full ({said})")
    return _credentials_refused(error, code, status, said, endpoint) or _request_refused(
        code, status, said, what=what, bucket=bucket, endpoint=endpoint
    )


def _credentials_refused(
    error: boto.ClientError, code: str, status: int, said: str, endpoint: str
) -> P2PCacheError | None:
    """The error for a refusal of our credentials, whatever the request was."""
    if code in _SKEW:
        return NotAllowed(
            f"this machine's clock is too far from that of {endpoint} ({said}); synchronise it (NTP)"
        )
    if code in _EXPIRED:
        return NotAllowed(f"the S3 credentials have expired ({said}): renew them; {_source()}")
    if error.operation_name in _GIVES_CREDENTIALS:
        return NotAllowed(
            f"S3 credentials can't be had: {error.operation_name} is refused ({said}); {_source()}"
        )
    if code in _WRONG_KEY:
        return NotAllowed(f"{endpoint} doesn't take the S3 credentials ({said}); {_source()}")
    return None


def _request_refused(
    code: str, status: int, said: str, *, what: str, bucket: str, endpoint: str
) -> P2PCacheError:
    """The error for a refusal of the request."""
    if code == "NoSuchBucket":
        return NoContainer(f"no bucket {bucket!r} at {endpoint}; create it, or check the URL")
    if code == "InvalidObjectState":
        return NotAllowed(f"{what} is archived ({said}); restore it, or push it again")
    if code in _MOVED or status in (301, 307):
        return UsageError(
            f"bucket {bucket!r} is in another region ({said}); set AWS_REGION to its region"
        )
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
