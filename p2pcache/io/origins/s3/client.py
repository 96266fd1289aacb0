"""The botocore client of an origin, and another one when its credentials were renewed."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import botocore
import botocore.session
from botocore.config import Config
from botocore.credentials import RefreshableCredentials

from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io import redaction
from p2pcache.io.origins.base import OriginSettings
from p2pcache.io.origins.s3.answers import sender
from p2pcache.io.origins.s3.descriptions import read_quickly
from p2pcache.io.origins.s3.errors import FOREIGN, about_credentials, refuse_strangers
from p2pcache.io.origins.s3.part_calls import SUM_HEADER

LOOK_AGAIN_S = 1.0  # between reads of a file of credentials, however many refusals come
FETCH_AGAIN_S = 60.0  # between requests to a service that hands out new keys each time

_IN_ENV = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IN_FILE = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_SETTINGS = (
    "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE",
    "AWS_CA_BUNDLE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE", "P2PCACHE_S3_ADDRESSING", "P2PCACHE_S3_UNSIGNED",
)  # fmt: skip


for _library in ("botocore", "urllib3"):
    # Where nobody has set up logging, Python prints warnings itself: with traces, which may quote keys.
    logging.getLogger(_library).addHandler(logging.NullHandler())


class Clients:
    """Makes clients. botocore reads a file of credentials once in a client's life."""

    def __init__(self, settings: OriginSettings) -> None:
        """Find credentials, and make the first one.

        Raises:
            UsageError: a setting holds white space or a line break.
            NotAllowed: so do the credentials.
            FOREIGN: as botocore has it.
        """
        self._settings = settings
        self._lock = threading.Lock()
        self._looked = self._fetched = -FETCH_AGAIN_S
        _check_settings()
        self.client, self._credentials = _make(settings)

    def renewed(self, client: Any, error: Exception) -> bool:
        """Whether to retry: `client` was refused, and there are other credentials by now.

        Blocks for the file or the service that provides them.
        """
        if self._settings.s3_unsigned or not about_credentials(error):
            return False
        with self._lock:
            if self.client is not client:
                return True  # another thread has found them meanwhile
            now = time.monotonic()
            if now < self._looked + LOOK_AGAIN_S:
                return False
            self._looked = now
            fetched = isinstance(self._credentials, RefreshableCredentials)
            if fetched and now < self._fetched + FETCH_AGAIN_S:
                return False
            with contextlib.suppress(P2PCacheError, *FOREIGN):  # half written, for example
                fresh, credentials = _make(self._settings)
                if credentials is None or _values(credentials, fetch=True) == self._known():
                    fresh.close()
                    return False
                if fetched:
                    self._fetched = now
                self.client, self._credentials = fresh, credentials
                client.close()
                return True
            return False

    def hide(self) -> None:
        """Let no message show the credentials in use; they may be newer than the client."""
        _hide(self._known())

    def _known(self) -> tuple[str, ...]:
        return () if self._credentials is None else _values(self._credentials, fetch=False)


def _make(settings: OriginSettings) -> tuple[Any, Any]:
    """A client and its credentials, None if there are none or none are wanted."""
    session = botocore.session.Session(profile=settings.s3_profile or None)
    read_quickly(session)
    credentials = None if settings.s3_unsigned else session.get_credentials()
    if credentials is not None:
        values = _values(credentials, fetch=False)
        _hide(values)
        _check_credentials(values, str(getattr(credentials, "method", "")))
    s3: dict[str, object] = {
        # Over TLS the channel proves the bytes; SHA-256 in front of it would cap a push at 0.36
        # GB/s a core. For plain HTTP see `_binding`.
        "payload_signing_enabled": False
    }
    if settings.s3_addressing != "auto":
        s3["addressing_style"] = settings.s3_addressing
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        max_pool_connections=settings.pool,
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `Retrying` does it
        # CRC trailers are news to many compatible stores; chunks carry BLAKE3 digests anyway
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3=s3,
        **({"signature_version": botocore.UNSIGNED} if settings.s3_unsigned else {}),
    )
    # Every SDK but botocore reads AWS_REGION, and Kubernetes webhooks set only that one.
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    client = session.create_client(
        "s3", region_name=region, config=config, endpoint_url=settings.s3_endpoint or None
    )
    client.meta.events.register("before-send.s3", sender(client))
    client.meta.events.register("before-parse.s3", refuse_strangers)
    client.meta.events.register("before-sign.s3", _binding(client))
    client.meta.events.register_first("choose-signer.s3", _sign_url)
    return client, credentials


def _binding(client: Any) -> Callable[..., None]:
    """For botocore's event "before-sign": sign the SHA-256 of a body that nothing else proves.

    Over plain HTTP anybody on the way could change it: a tag, for example. It is bound where the storage compares
    the hash with the body, which not all do, and where there are credentials to sign with.
    """
    config = client.meta.config.merge(Config(s3={"payload_signing_enabled": True}))

    def bind(request: Any, **_: object) -> None:
        if not request.url.startswith("https:") and SUM_HEADER not in request.headers:
            request.context["client_config"] = config

    return bind


def _sign_url(signature_version: Any, **_: object) -> str | None:
    """Sign URLs as requests are signed; botocore would take the version before, which few storages know."""
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query") else None


def _values(credentials: Any, *, fetch: bool) -> tuple[str, ...]:
    """Key id, secret and token; `fetch`: asked for if they weren't yet, or are too old."""
    if fetch:
        frozen = credentials.get_frozen_credentials()
        return tuple(str(value or "") for value in frozen[:3])
    # Public names of those that are fetched would fetch them.
    inside = "_" if isinstance(credentials, RefreshableCredentials) else ""
    names = ("access_key", "secret_key", "token")
    return tuple(str(getattr(credentials, inside + name, None) or "") for name in names)


def _hide(values: tuple[str, ...]) -> None:
    redaction.keep_ids(*values[:1])
    redaction.keep(*values[1:])


def _check_settings() -> None:
    for name in _SETTINGS:
        value = os.environ.get(name, "")
        if value != value.strip() or not value.isprintable():
            raise UsageError(
                f"{name} begins or ends with white space, or holds a line break; set it without "
                "(a Secret that was made with `echo` ends in a line break: use `echo -n`)"
            )


def _check_credentials(values: tuple[str, ...], method: str) -> None:
    for value, variable, entry in zip(values, _IN_ENV, _IN_FILE, strict=True):
        if value.isprintable() and not any(map(str.isspace, value)):
            continue
        where = variable if method == "env" else f"{entry} of {_place(method)}"
        raise NotAllowed(
            f"{where} holds white space or a line break, which no key has; write it without "
            "(a Secret that was made with `echo` ends in a line break: use `echo -n`)"
        )


def _place(method: str) -> str:
    profile = os.environ.get("AWS_PROFILE", "default")
    if method == "shared-credentials-file":
        file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        return f"profile {profile!r} in {file}"
    if method == "config-file":
        file = os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")
        return f"profile {profile!r} in {file}"
    return f"the credentials that {method or 'botocore'} gave"
