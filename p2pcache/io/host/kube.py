"""The two calls to a Kubernetes API server that an agent makes: read its Node's labels, patch them.

Address, certificate authority and token are the ones that the cluster gives to every pod; the
token is read at each call, because the kubelet renews its file.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from p2pcache.errors import NotAllowed, NotFound, P2PCacheError, Unreachable, UsageError
from p2pcache.io.http.client import read_token

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S = 10.0  # the API server answers in milliseconds, or is in trouble
MAX_NODE_BYTES = 4 << 20  # a Node lists its images: some hundred KB on a busy one


class _Metadata(msgspec.Struct):
    labels: dict[str, str] = {}


class _Answer(msgspec.Struct):
    """A Node, or a Status with an error: the parts of both that we use."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    message: str = ""


class NodeLabels:
    """The labels of one Node."""

    def __init__(self, node: str, url: str, account_dir: Path = ACCOUNT_DIR) -> None:
        """No contact yet.

        Args:
            node: the Node's name.
            url: of the API server.
            account_dir: the pod's service account: `token` and `ca.crt`.
        """
        self._url = f"{url.rstrip('/')}/api/v1/nodes/{quote(node, safe='')}"
        self._node = node
        self._account = account_dir

    async def fetch_labels(self) -> dict[str, str]:
        """All labels that the Node has now.

        Raises:
            Unreachable, NotAllowed, NotFound: said by, or of, the API server.
        """
        return await self._call("GET", None)

    async def patch(self, changes: Mapping[str, str | None]) -> None:
        """Set labels, and take away those that are None; others stay as they are.

        Raises:
            Unreachable, NotAllowed, NotFound: as `read`.
        """
        await self._call("PATCH", {"metadata": {"labels": changes}})

    async def _call(self, method: str, body: object) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {read_token(str(self._account / 'token'))}"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
            data = msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=CALL_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.request(
                    method, self._url, data=data, headers=headers, ssl=self._trust(),
                    allow_redirects=False,
                ) as answer,
            ):  # fmt: skip
                return self._labels(method, answer.status, await _body(answer))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            # A connector's own text shows objects of Python's.
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            text = getattr(cause, "strerror", None) or str(cause) or "no answer in time"
            raise Unreachable(f"the Kubernetes API server doesn't answer: {text}") from None

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except OSError as error:
            raise NotAllowed(
                f"can't read {self._account / 'ca.crt'}: {error.strerror}; the pod needs its service account "
                "(automountServiceAccountToken: true)"
            ) from None

    def _labels(self, method: str, status: int, data: bytes) -> dict[str, str]:
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            answer = _Answer(message="and no JSON that makes sense")
            status = status if status >= 400 else 502
        if status == 200:
            return answer.metadata.labels
        text = f"{method} of node {self._node}: HTTP {status} {answer.message}".strip()[:500]
        if status in (401, 403):
            raise NotAllowed(
                f"{text}; apply the component node-labels or topology (docs/kubernetes.md)"
            )
        if status == 404:
            raise NotFound(f"{text}; is --node-name the name of this Kubernetes node?")
        raise Unreachable(text) if status >= 500 or status == 429 else P2PCacheError(text)


def in_cluster(node: str, environ: Mapping[str, str] = os.environ) -> NodeLabels:
    """The Node's labels through the API server that this pod was told of.

    Raises:
        UsageError: this isn't a pod.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise UsageError(
            "labels of a Node can be had inside a Kubernetes pod only (KUBERNETES_SERVICE_HOST isn't set)"
        )
    shown = f"[{host}]" if ":" in host else host
    return NodeLabels(node, f"https://{shown}:{port}")


async def _body(answer: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for part in answer.content.iter_chunked(1 << 16):
        data += part
        if len(data) > MAX_NODE_BYTES:
            raise Unreachable("the Kubernetes API server's answer is too large for a Node")
    return bytes(data)
