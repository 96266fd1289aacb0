"""A blocking client of the agent's local API (docs/api.md): one method for each call.

One client serves many threads. Only the standard library is imported: this is the fast path of
`p2pcache pull`.
"""

import http.client
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io.byte_order_mark import without_mark
from p2pcache.io.http.endpoint import Endpoint, Events, as_json
from p2pcache.io.http.exchange import Json, no_agent_but_tracker
from p2pcache.io.http.patience import Say, silently

__all__ = ["AgentClient", "Events", "Json", "read_token"]

ANSWER_S = 60.0  # a resolve may wait for tracker and origin, with their retries
MAX_TOKEN_BYTES = 16 << 10


class AgentClient:
    """Calls to one agent over a unix socket or TCP.

    Each call raises `Unreachable` or `Lost` when the agent doesn't answer, else the agent's own error.
    """

    def __init__(
        self, address: str, *, token: str = "", answer_s: float = ANSWER_S, say: Say = silently
    ) -> None:
        """Parse the address; nothing is connected yet.

        Args:
            address: unix:///PATH or http://HOST:PORT.
            token: sent as Bearer, when not empty.
            answer_s: how long a plain call may take.
            say: told every few seconds that we wait for the agent.

        Raises:
            UsageError: another kind of address.
        """
        self.address = address
        self._endpoint = Endpoint(address, token, say)
        self._answer_s = answer_s

    def connection(self) -> http.client.HTTPConnection:
        """A connection that isn't open yet, for requests that are no calls of the API (metrics)."""
        return self._endpoint.connection()

    def pull(
        self,
        ref: str,
        *,
        force_generation: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        background: bool = False,
        hold: str = "",
        hold_s: float = 0.0,
        hold_pid: int = 0,
        url: str = "",
    ) -> Events:
        """Events of a pull, `done` last; closing the iterator stops waiting for it.

        Args:
            ref: the model.
            force_generation: take a tag that went back, too.
            include: patterns of files; none of both: the whole model.
            exclude: patterns of files to leave out.
            background: let pulls that somebody waits for go first.
            hold: name of a hold: the model isn't evicted while it lasts; "": none.
            hold_s: how long it lasts; 0: a day, or as long as `hold_pid`.
            hold_pid: the process with which it ends; 0: with none.
            url: the model of a hub that `ref` stands for, brought in if it is missing; "": of none.
        """
        body: Json = {"ref": url or ref, "force_generation": force_generation}
        if background:  # an older agent refuses the key, so it is left out where it says nothing
            body["background"] = True
        if hold:
            from p2pcache.io.clock import start_of  # no other pull needs it

            started = start_of(hold_pid) if hold_pid else ""
            body |= {"hold": hold, "hold_s": hold_s, "hold_pid": hold_pid, "hold_started": started}
        if include or exclude:
            body |= {"include": list(include), "exclude": list(exclude)}
        return self._endpoint.stream("/v1/pull", body)

    def warm(self, ref: str, replicas: int = 0) -> Json:
        """Fetch a model behind all pulls.

        Args:
            ref: the model.
            replicas: on how many nodes of the cluster; 0: on the agent's own node.
        """
        body = as_json({"ref": ref, "replicas": replicas})
        return self._call("POST", "/v1/warm", body=body, wait_s=ANSWER_S)

    def cancel(self, ref: str) -> Json:
        """End a pull or a warm for all who wait for it."""
        return self._call("POST", "/v1/cancel", body=as_json({"ref": ref}))

    def load(self, ref: str, *, needed: bool) -> Events:
        """Events while a model arrives, `done` last; `needed`: fetch only the runs that `demand` names."""
        return self._endpoint.stream("/v1/load", {"ref": ref, "needed": needed})

    def demand(self, load: str, runs: list[tuple[int, int]], *, urgent: bool) -> None:
        """Name runs [start, end) that an attached load needs; `urgent`: before everything else."""
        body = as_json({"load": load, "runs": runs, "urgent": urgent})
        self._call("POST", "/v1/demand", body=body)

    def verify(self, ref: str) -> Events:
        """Events of a verify, `done` last."""
        return self._endpoint.stream("/v1/verify", {"ref": ref})

    def push(self, ref: str, digest: str, **how: bool) -> Events:
        """Events of the upload (`force`, `repair`), `done` last; the blobs are with the agent already."""
        return self._endpoint.stream("/v1/push", {"ref": ref, "digest": digest, **how})

    def import_model(self, url: str, ref: str, **how: object) -> Events:
        """Events of an import (`include`, `exclude`, `copy`, `force`), `done` last."""
        return self._endpoint.stream("/v1/import", {"url": url, "ref": ref, **how})

    def linger(self, digest: str, seconds: float) -> bool:
        """Wait at most `seconds` until another node has all that this one has of a model; true if one has."""
        body = as_json({"digest": digest, "seconds": seconds})
        return bool(self._call("POST", "/v1/linger", body=body, wait_s=seconds).get("replicated"))

    def offer(self, manifest: bytes) -> Json:
        """Start a push: which blobs the agent needs."""
        return self._call("POST", "/v1/manifests", body=manifest)

    def models(self) -> list[Json]:
        """The models of the agent's cache."""
        return _records(self._call("GET", "/v1/models"), "models")

    def model(self, ref: str) -> Json:
        """One model, in the cache or not."""
        return self._call("GET", "/v1/model", query={"ref": ref})

    def signatures(self, ref: str) -> Json:
        """The model's digest and its stored signatures, unproved."""
        return self._call("GET", "/v1/signatures", query={"ref": ref})

    def store_signature(self, ref: str, digest: str, bundle: str) -> None:
        """Store a signature for a digest in a ref's namespace."""
        body = as_json({"ref": ref, "digest": digest, "signature": bundle})
        self._call("POST", "/v1/signatures", body=body)

    def remove(self, ref: str) -> Json:
        """Remove a tag; with its last tag, the model."""
        return self._call("DELETE", "/v1/model", query={"ref": ref})

    def prune(self, *, dry_run: bool, everything: bool) -> Json:
        """Remove untagged models; with `everything`, each model that is not in use."""
        body = as_json({"dry_run": dry_run, "all": everything})
        return self._call("POST", "/v1/prune", body=body)

    def room(self) -> Json:
        """How full the agent's cache is."""
        return self._call("GET", "/v1/room")

    def cluster_room(self) -> Json:
        """How full the caches of all nodes are: `room`, how many nodes were `silent`, or are `older`."""
        return self._call("GET", "/v1/cluster/room")

    def cluster_models(self) -> list[Json]:
        """The models that nodes have or want, as the tracker knows them."""
        return _records(self._call("GET", "/v1/cluster/models"), "swarms")

    def keeps(self) -> Json:
        """What is kept in the cluster: `keeps`, and to operators of all namespaces `drains`."""
        return self._call("GET", "/v1/keeps")

    def keep(
        self,
        ref: str,
        *,
        copies: int = 0,
        whole: bool = False,
        everywhere: bool = False,
        nodes: str = "",
    ) -> Json:
        """Keep copies of a model in the cluster.

        Args:
            ref: the model's name.
            copies: how many, each on another node.
            whole: each is a complete model on one node.
            everywhere: a complete model on each node.
            nodes: only on these, as `KEY=VALUE,...`.
        """
        wish = {
            "ref": ref,
            "copies": copies,
            "whole": whole,
            "everywhere": everywhere,
            "nodes": nodes,
        }
        body = as_json(wish)
        return self._call("POST", "/v1/keeps", body=body, wait_s=ANSWER_S)

    def keep_off(self, ref: str) -> Json:
        """Keep a model no longer."""
        return self._call("DELETE", "/v1/keeps", query={"ref": ref}, wait_s=ANSWER_S)

    def drain(self, node: str, *, undo: bool = False) -> Json:
        """Move what is kept on a node, by its name or id, to others; `undo`: end that."""
        body = as_json({"node": node, "undo": undo})
        return self._call("POST", "/v1/drain", body=body, wait_s=ANSWER_S)

    def pin(self, ref: str, name: str, for_s: float) -> Json:
        """Pin a model; `for_s`: 0: until `unpin`."""
        body = as_json({"ref": ref, "name": name, "for_s": for_s})
        return self._call("POST", "/v1/pins", body=body)

    def pins(self) -> list[Json]:
        """The pins and holds that last."""
        return _records(self._call("GET", "/v1/pins"), "pins")

    def unpin(self, ref: str, name: str = "") -> Json:
        """End a model's pins; `name`: only this one."""
        query = {"ref": ref, "name": name} if name else {"ref": ref}
        return self._call("DELETE", "/v1/pins", query=query)

    def end_holds(self, name: str) -> Json:
        """End the holds of a name."""
        return self._call("POST", "/v1/release", body=as_json({"name": name}))

    def evict(self, ref: str = "", *, to_bytes: int | None = None, dry_run: bool = False) -> Json:
        """Evict one model, or the least valuable ones until the cache has at most `to_bytes` (None: its low mark)."""
        body: Json = {"ref": ref, "to_bytes": to_bytes, "dry_run": dry_run}
        return self._call("POST", "/v1/evict", body=as_json(body), wait_s=ANSWER_S)

    def pulls(self) -> list[Json]:
        """The pulls that run now."""
        return _records(self._call("GET", "/v1/pulls"), "pulls")

    def nodes(self) -> list[Json]:
        """The cluster's nodes, as the tracker knows them."""
        return _records(self._call("GET", "/v1/nodes"), "nodes")

    def nodes_and_gone(self) -> tuple[list[Json], list[Json]]:
        """The cluster's nodes, and those that are gone within the last hour (an older tracker names none)."""
        answer = self._call("GET", "/v1/nodes")
        return _records(answer, "nodes"), _records({"gone": [], **answer}, "gone")

    def locate(self, ref: str) -> Json:
        """The nodes that have a model: `ref`, `digest`, `label`, `nodes`."""
        return self._call("GET", "/v1/locate", query={"ref": ref})

    def history(self, limit: int) -> list[Json]:
        """Actions that ended on the agent's node, the newest first."""
        return _records(self._call("GET", "/v1/history", query={"limit": str(limit)}), "history")

    def cluster_pulls(self) -> Json:
        """The pulls that run on all nodes: `pulls`, how many nodes were `silent`, or are `older`."""
        return self._call("GET", "/v1/cluster/pulls")

    def cluster_history(self, limit: int) -> Json:
        """Actions that ended on all nodes, the newest first: `history`, `silent`, `older`; `limit`: of each node."""
        return self._call("GET", "/v1/cluster/history", query={"limit": str(limit)})

    def explain(self, ref: str) -> Json:
        """What a pull waits for, or where its time went."""
        return self._call("GET", "/v1/explain", query={"ref": ref})

    def status(self) -> Json:
        """Agent, tracker, origin and cache in one object."""
        state = self._call("GET", "/v1/status")
        # A tracker of an older release, whose answers don't say what it is.
        if "role" in state and "node" not in state:
            raise no_agent_but_tracker(self.address)
        return state

    def put_blob(
        self, manifest: str, blob: str, file: BinaryIO, size: int, on_bytes: Callable[[int], None]
    ) -> None:
        """Send one blob of a push.

        Args:
            manifest: digest of the manifest that was offered.
            blob: id of the blob.
            file: a regular file, sent from its first byte by sendfile.
            size: bytes.
            on_bytes: told the bytes of each slice when it is sent; negative when a busy agent
                makes the upload start again.

        Raises:
            P2PCacheError: the agent's own error (not proved, no space, ...).
        """
        self._endpoint.upload(f"/v1/blobs/{quote(manifest)}/{quote(blob)}", file, size, on_bytes)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: bytes = b"",
        wait_s: float = 0.0,
    ) -> Json:
        answer_s = self._answer_s + wait_s
        return self._endpoint.call(method, path, query=query, body=body, answer_s=answer_s)


def read_token(path: str) -> str:
    """The token of a file, "" for no path.

    Raises:
        NotAllowed: it can't be read.
        UsageError: it isn't a token (one printable word).
    """
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            token = without_mark(file.read(MAX_TOKEN_BYTES)).decode("ascii", "replace").strip()
    except OSError as error:
        raise NotAllowed(f"can't read token file {path}: {error.strerror}") from None
    if not token.isprintable() or not token.isascii() or " " in token or not token:
        raise UsageError(f"token file {path} doesn't hold a token (one word of printable ASCII)")
    return token


def _records(answer: Json, key: str) -> list[Json]:
    records = answer.get(key)
    if not isinstance(records, list):
        raise P2PCacheError(f"the agent's answer has no {key!r}; is it of another release?")
    return [r for r in records if isinstance(r, dict)]
