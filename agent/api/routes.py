"""The one table of the agent's API: each call with its right, its body, its answer and its text.

The web application (`handlers`), the check of rights (`gate`) and the OpenAPI document (`openapi`) are made
from it. docs/api.md is the prose. A new call is a row here and a method of `handlers.Api`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec

from p2pcache.core.protocol.tokens import Scope

Where = Literal["model", "seen", "node"]
"""Where a right must hold: in the namespace of the ref (the handler checks it as soon as it knows the ref);
anywhere, because the answer shows only what the caller may see; in every namespace."""

Slots = Literal["", "pull", "offer", "blob", "work"]
"""The pool of places that a call takes while it runs; "": it is over at once."""

JSON = "application/json"
NDJSON = "application/x-ndjson"
TEXT = "text/plain"
OCTETS = "application/octet-stream"

MAX_DEMANDED = 65_536  # pairs in one call: more than any loader waits for, little memory
Pairs = Annotated[list[tuple[int, int]], msgspec.Meta(max_length=MAX_DEMANDED)]


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pull."""

    ref: str  # or hf://ORG/REPO[@REVISION]
    force_generation: bool = False
    include: list[str] = []  # patterns; without `include` and `exclude` the whole model
    exclude: list[str] = []
    background: bool = False  # no client waits for it: other pulls go first
    hold: str = ""  # a name: the model isn't evicted until the hold of this name ends
    hold_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # how long; 0: a day, or as long as hold_pid
    hold_pid: Annotated[int, msgspec.Meta(ge=0)] = (
        0  # the hold ends with this process; 0: with none
    )
    hold_started: str = ""  # when that process started, field 22 of its /proc/PID/stat


class WarmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/warm."""

    ref: str
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 0  # nodes of the cluster; 0: this one


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/cancel."""

    ref: str


class LoadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/load."""

    ref: str
    needed: bool = False  # fetch only what /v1/demand names, not the whole model


class DemandRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/demand."""

    load: str
    runs: Pairs  # [start, end)
    urgent: bool = True  # before everything else


class PushRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/push."""

    ref: str
    digest: str
    force: bool = False
    repair: bool = False  # upload also what the origin has


class SignatureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/signatures."""

    ref: str  # says the namespace
    digest: str
    signature: str  # a Sigstore bundle


class ImportRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/import."""

    url: str  # must lie in a source that is configured here
    ref: str
    include: list[str] = []  # patterns as of a pull
    exclude: list[str] = []
    copy: bool = False  # store the blobs in the origin, too
    force: bool = False


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/prune."""

    dry_run: bool = False
    all: bool = False


class PinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pins."""

    ref: str
    name: str
    for_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # 0: until it is ended


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/release."""

    name: str


class EvictRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/evict."""

    ref: str = ""  # one model; "": the least valuable ones
    to_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None  # until the cache holds at most this
    dry_run: bool = False


class KeepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/keeps. Either `copies`, or `everywhere`."""

    ref: str
    copies: Annotated[int, msgspec.Meta(ge=0)] = 0  # of each part, each on another node
    whole: bool = False  # each copy is a complete model on one node
    everywhere: bool = False  # whole, on each node that `nodes` chooses
    nodes: str = ""  # KEY=VALUE,...: site, rack, node, role or a label; "": all but clients


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/drain."""

    node: str  # an id or a name
    undo: bool = False


class VerifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/verify."""

    ref: str


class PressureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pressure."""

    level: float  # 0: the engine does well, 1: as bad as it should ever be


class LingerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/linger."""

    digest: str
    seconds: float


class Rule(NamedTuple):
    """What a call needs."""

    scope: Scope | None  # None: no right, every client of the listener may ask
    where: Where
    slots: Slots = ""
    cheap: bool = False  # many a second are usual


@dataclass(frozen=True, slots=True)
class Route:
    """One call."""

    method: str
    path: str
    handler: str  # the method of `handlers.Api` that answers
    rule: Rule
    doc: str  # one line, for OpenAPI
    body: type[msgspec.Struct] | Literal["bytes"] | None = None
    answer: str = JSON  # the media type of an answer that isn't an error
    query: tuple[str, bool] | None = None  # a parameter's name, and whether it is required
    probe: bool = False  # the port for health probes and Prometheus answers it as well

    @property
    def key(self) -> tuple[str, str]:
        """What `BY_CALL` names it by."""
        return self.method, self.path


_OPEN = Rule(None, "seen", cheap=True)
_REF = ("ref", True)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/healthz", "get_healthz", _OPEN, "The process answers", probe=True),
    Route("GET", "/readyz", "get_readyz", _OPEN,
          "Ready, or reasons why not; ?model=REF asks for one model", query=("model", False), probe=True),
    Route("GET", "/metrics", "get_metrics", _OPEN, "Prometheus text", answer=TEXT, probe=True),
    Route("GET", "/openapi.json", "get_openapi", _OPEN, "This document"),
    Route("POST", "/v1/pull", "post_pull", Rule(Scope.PULL, "model", "pull"),
          "Pull a model; NDJSON events until done or error", PullRequest, NDJSON),
    Route("POST", "/v1/warm", "post_warm", Rule(Scope.ADMIN, "model"),
          "Fetch a model behind all pulls: here, or on so many nodes of the cluster", WarmRequest),
    Route("POST", "/v1/cancel", "post_cancel", Rule(Scope.ADMIN, "model"),
          "End a pull or a warm for all who wait for it; what came stays", CancelRequest),
    Route("POST", "/v1/load", "post_load", Rule(Scope.PULL, "model", "pull"),
          "Read a model while it arrives; NDJSON events until done or error", LoadRequest, NDJSON),
    # The id of a load is a secret of its loader, so the ref isn't checked again.
    Route("POST", "/v1/demand", "post_demand", Rule(Scope.PULL, "seen", cheap=True),
          "Runs that an attached loader needs, [[start, end], ..]", DemandRequest),
    Route("GET", "/v1/models", "get_models", Rule(Scope.PULL, "seen"), "Models of this cache"),
    Route("GET", "/v1/model", "get_model", Rule(Scope.PULL, "model"),
          "One model with its files; ?ref=", query=_REF),
    Route("DELETE", "/v1/model", "delete_model", Rule(Scope.ADMIN, "model", "work"),
          "Remove a tag, and with the last one the model; ?ref=", query=_REF),
    Route("GET", "/v1/signatures", "get_signatures", Rule(Scope.PULL, "model"),
          "Signatures of a model in its namespace, unproved; ?ref=", query=_REF),
    Route("POST", "/v1/signatures", "post_signature", Rule(Scope.PUSH, "model", "work"),
          "Store a signature beside the manifest", body=SignatureRequest),
    Route("GET", "/v1/pulls", "get_pulls", Rule(Scope.PULL, "seen"), "Pulls that run now"),
    Route("GET", "/v1/explain", "get_explain", Rule(Scope.PULL, "model"),
          "What a pull waits for, or where its time went; ?ref=", query=_REF),
    Route("GET", "/v1/history", "get_history", Rule(Scope.PULL, "seen"),
          "What ended on this node, the newest first; ?limit=", query=("limit", False)),
    Route("GET", "/v1/nodes", "get_nodes", Rule(Scope.ADMIN, "node"), "Members of the cluster"),
    Route("GET", "/v1/cluster/pulls", "get_cluster_pulls", Rule(Scope.ADMIN, "node"),
          "Pulls that run now, on all nodes"),
    Route("GET", "/v1/cluster/history", "get_cluster_history", Rule(Scope.ADMIN, "node"),
          "What ended on all nodes, the newest first; ?limit= of each node", query=("limit", False)),
    Route("GET", "/v1/room", "get_room", Rule(Scope.PULL, "seen"), "How full the cache is"),
    Route("GET", "/v1/cluster/room", "get_cluster_room", Rule(Scope.ADMIN, "node"),
          "How full the caches of all nodes are"),
    Route("GET", "/v1/cluster/models", "get_cluster_models", Rule(Scope.ADMIN, "node"),
          "Models that nodes have or want, with their copies"),
    Route("GET", "/v1/keeps", "get_keeps", Rule(Scope.PULL, "seen"),
          "Models that are kept in the cluster, with their copies; nodes that are emptied"),
    Route("POST", "/v1/keeps", "post_keep", Rule(Scope.ADMIN, "model"),
          "Keep copies of a model in the cluster, until that is ended", KeepRequest),
    Route("DELETE", "/v1/keeps", "delete_keep", Rule(Scope.ADMIN, "model"),
          "Keep a model no longer; ?ref=", query=_REF),
    Route("POST", "/v1/drain", "post_drain", Rule(Scope.ADMIN, "node"),
          "Move what is kept on a node to others, or end that", DrainRequest),
    Route("GET", "/v1/locate", "get_locate", Rule(Scope.PULL, "model"),
          "Nodes that have a model; ?ref=", query=_REF),
    Route("GET", "/v1/status", "get_status", Rule(Scope.PULL, "seen"), "This node's state"),
    Route("POST", "/v1/manifests", "post_manifests", Rule(Scope.PUSH, "seen", "offer"),
          "Begin a push; which blobs are missing?", "bytes"),
    Route("PUT", "/v1/blobs/{manifest}/{blob}", "put_blob", Rule(Scope.PUSH, "seen", "blob", cheap=True),
          "Send one blob of a push", "bytes"),
    Route("POST", "/v1/push", "post_push", Rule(Scope.PUSH, "model", "work"),
          "Upload and move the tag; NDJSON events", PushRequest, NDJSON),
    Route("POST", "/v1/import", "post_import", Rule(Scope.PUSH, "model", "work"),
          "Import a model from a configured source; NDJSON events", ImportRequest, NDJSON),
    Route("POST", "/v1/prune", "post_prune", Rule(Scope.ADMIN, "node", "work"),
          "Remove what nothing names", PruneRequest),
    # The handler asks for the right in every namespace where no ref is given.
    Route("POST", "/v1/evict", "post_evict", Rule(Scope.ADMIN, "model", "work"),
          "Evict a model, or the least valuable ones; they stay listed", EvictRequest),
    Route("GET", "/v1/pins", "get_pins", Rule(Scope.PULL, "seen"), "Pins and holds: why models stay"),
    Route("POST", "/v1/pins", "post_pins", Rule(Scope.ADMIN, "model"), "Pin a model", PinRequest),
    Route("DELETE", "/v1/pins", "delete_pins", Rule(Scope.ADMIN, "model"),
          "End a model's pins; ?ref=, and ?name= of one", query=_REF),
    Route("POST", "/v1/release", "post_release", Rule(Scope.PULL, "seen"),
          "End the holds of a name", ReleaseRequest),
    Route("POST", "/v1/verify", "post_verify", Rule(Scope.ADMIN, "model", "work"),
          "Prove every chunk again; NDJSON events", VerifyRequest, NDJSON),
    Route("POST", "/v1/linger", "post_linger", Rule(Scope.ADMIN, "node", "work"),
          "Wait until other nodes hold what this one holds", LingerRequest),
    Route("POST", "/v1/pressure", "post_pressure", Rule(Scope.ADMIN, "node", cheap=True),
          "How the engine on this host does: 0 well, 1 as bad as it should ever be", PressureRequest),
)  # fmt: skip
BY_CALL = {route.key: route for route in ROUTES}
UNLISTED = Rule(Scope.ADMIN, "node", "work")
"""Of a call that isn't in the table, such as a path that doesn't exist."""
