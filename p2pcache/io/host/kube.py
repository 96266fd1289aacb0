"""The two calls to a Kubernetes API server that an agent makes: read its Node's labels, patch them."""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import msgspec

from p2pcache.errors import NotAllowed, NotFound, P2PCacheError, Unreachable
from p2pcache.io.host.kube_api import ACCOUNT_DIR, MERGE_PATCH, KubeApi, server_url


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
        self._api = KubeApi(url, account_dir)
        self._path = f"/api/v1/nodes/{quote(node, safe='')}"
        self._node = node

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
        status, data = await self._api.call(method, self._path, body, MERGE_PATCH)
        return self._labels(method, status, data)

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
    return NodeLabels(node, server_url("labels of a Node", environ))
