"""Calls to the Kubernetes API server, with the service account of this pod.

Address, certificate authority and token are the ones that the cluster gives to every pod; the
token is read at each call, because the kubelet renews its file.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec

from p2pcache.errors import NotAllowed, Unreachable, UsageError
from p2pcache.io.http.client import read_token

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S = 10.0  # the API server answers in milliseconds, or is in trouble
MAX_ANSWER_BYTES = 4 << 20  # a Node lists its images: some hundred KB on a busy one
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"


class KubeApi:
    """One API server, and who we are there."""

    def __init__(
        self, url: str, account_dir: Path = ACCOUNT_DIR, *, call_s: float = CALL_S
    ) -> None:
        """No contact yet.

        Args:
            url: of the API server.
            account_dir: the pod's service account: `token`, `ca.crt` and `namespace`.
            call_s: for one call, in seconds.
        """
        self._url = url.rstrip("/")
        self._account = account_dir
        self._timeout = aiohttp.ClientTimeout(total=call_s)

    def namespace(self) -> str:
        """The pod's namespace.

        Raises:
            NotAllowed: the pod has no service account.
        """
        path = self._account / "namespace"
        try:
            return path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _no_account(path, error) from None

    async def call(
        self, method: str, path: str, body: object = None, kind: str = JSON
    ) -> tuple[int, bytes]:
        """One call; the answer's status and body, whatever they say.

        Args:
            method: of HTTP.
            path: of the resource, with its leading slash.
            body: anything that msgspec encodes; None: no body.
            kind: the body's content type.

        Raises:
            Unreachable: no answer, or one that is too large.
            NotAllowed: the pod has no service account.
        """
        headers = {"Authorization": f"Bearer {read_token(str(self._account / 'token'))}"}
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = msgspec.json.encode(body)
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.request(
                    method, f"{self._url}{path}", data=data, headers=headers, ssl=self._trust(),
                    allow_redirects=False,
                ) as answer,
            ):  # fmt: skip
                return answer.status, await _body(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # A connector's own text shows objects of Python's.
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            text = getattr(cause, "strerror", None) or str(cause) or "no answer in time"
            raise Unreachable(f"the Kubernetes API server doesn't answer: {text}") from None

    def _trust(self) -> ssl.SSLContext:
        path = self._account / "ca.crt"
        try:
            return ssl.create_default_context(cafile=str(path))
        except OSError as error:
            raise _no_account(path, error) from None


def server_url(wanted: str, environ: Mapping[str, str] = os.environ) -> str:
    """URL of the API server that this pod was told of.

    Args:
        wanted: what needs it, for the message.
        environ: the environment.

    Raises:
        UsageError: this isn't a pod.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise UsageError(
            f"{wanted} can be had inside a Kubernetes pod only (KUBERNETES_SERVICE_HOST isn't set)"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{port}"


def _no_account(path: Path, error: Exception) -> NotAllowed:
    why = getattr(error, "strerror", None) or str(error)
    return NotAllowed(
        f"can't read {path}: {why}; the pod needs its service account "
        "(automountServiceAccountToken: true)"
    )


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        data += part
        if len(data) > MAX_ANSWER_BYTES:
            raise Unreachable("the Kubernetes API server's answer is too large")
    return bytes(data)
