"""What agents and tracker say to each other on the one WebSocket between them.

MessagePack arrays, tagged by a small int: one binary WebSocket message holds one message.
Bitmaps are `bitset.to_bytes` over the runs of the model. Fields are only ever appended, with
defaults, so that neighbouring releases understand each other. Messages are untrusted input to
the other side: `MAX_MESSAGE_BYTES` limits their size, and their users check the values.
"""

from collections.abc import Collection
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from p2pcache.core import bitset
from p2pcache.core.format.manifest import MAX_CHUNKS
from p2pcache.core.protocol.keep_orders import MAX_LABELS, KeepOrders, KeptReport
from p2pcache.errors import RemoteProtocolError
from p2pcache.ids import NodeId, RunIndex, RunSet

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
NOT_ALLOWED = 4403  # close code during the handshake: not a member, the reason says why
CLONED_ID = 4409  # close code: another live agent has the same node id; the reason says where it is
MANIFEST_PART_BYTES = 1024 * 1024  # manifests travel in parts, so that no message is large
NODE_MANIFEST_BYTES = 256 * 1024  # of a part that a node gives: a short message holds it
# Of a message that doesn't list swarms: two bitmaps of the largest model, and thousands of numbers.
MAX_SHORT_BYTES = 512 * 1024
MAX_TOLD = 8192  # swarms in a message; of more the rest isn't heard
MAX_ENDED = 16  # ended pulls in a heartbeat; of more the rest isn't heard
MAX_STUCK = 32  # runs in a notice that they are stuck: a window; a member tells of more later
MAX_NAMED = 64  # nodes in each list of it: few neighbours of one node fail; the rest isn't heard
MAX_REPORTED = 256  # in each list of a report: more than a node has leases; the rest isn't heard
EVERYBODY = ""  # in place of a swarm's digest: all nodes of the cluster
MAX_FIGURE = 1 << 62  # bytes; more is no honest figure
MAX_LABEL = 290  # characters of the longest ref: 80/80:128
MAX_TEXT = 256  # characters of an announced text; a host's name has 253 at most

Figure = Annotated[int, Meta(ge=0, le=MAX_FIGURE)]
Seconds = Annotated[float, Meta(ge=0, le=1e8)]  # more is no honest duration
# Shown in terminals: no control characters, and none that hide text or turn its direction.
_UNFIT = r"\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
Label = Annotated[str, Meta(pattern=rf"\A[^{_UNFIT}]{{0,{MAX_LABEL}}}\Z")]
Text = Annotated[str, Meta(pattern=rf"\A[^{_UNFIT}]{{0,{MAX_TEXT}}}\Z")]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class _Message(msgspec.Struct, array_like=True, frozen=True):
    pass


def unfit_text(text: str) -> str:
    """Why other nodes, terminals and logs must not see a text, as the end of a sentence; empty: they may."""
    if len(text) > MAX_TEXT:
        return f"has {len(text)} characters; {MAX_TEXT} are allowed"
    if not text.isprintable():  # it could change a terminal, or forge a line of a log
        return "has characters that can't be printed"
    return ""


def run_bits(runs: Collection[RunIndex], run_count: int) -> RunSet:
    """The runs that a message lists.

    Raises:
        RemoteProtocolError: a run index beyond the model.
    """
    if runs and not (min(runs) >= 0 and max(runs) < run_count):
        raise RemoteProtocolError(f"a run beyond a model with {run_count} runs")
    return bitset.of(runs)


class Member(_Message, frozen=True):
    """One live node: id, address "host:port" of its peer listener, place."""

    node: NodeId
    address: str
    rack: str = ""
    site: str = ""


class SwarmState(_Message, frozen=True):
    """What one agent has of one model. A complete model is `have=b""` with `complete`."""

    digest: Digest  # of the manifest
    run_count: Annotated[int, Meta(ge=0, le=MAX_CHUNKS)]
    have: bytes = b""
    complete: bool = False
    credit: int = 0  # leases that it works on at once; 0: it wants no more of the model
    leases: tuple[RunIndex, ...] = ()  # runs it is reading from the origin right now
    known: tuple[NodeId, ...] = ()  # the swarm's members as it last knew them
    # A ref of the model; this and the next two fields are for people.
    label: Label = ""
    total_bytes: Figure = 0  # distinct bytes of the model
    # Bytes since its start: from peers, the origin, its own cache.
    taken: Annotated[tuple[Figure, ...], Meta(max_length=3)] = ()
    wanted: bytes = b""  # bitmap of the runs that it wants to have; empty: all
    pulled: bool = False  # all of it is being fetched, perhaps held back at the moment
    # Index 12 is taken: the release before names slow nodes there (docs/lab/0042).


# -- agent to tracker ---------------------------------------------------------------------------


class Announce(_Message, tag=1, frozen=True):
    """First message after the handshake: the agent's address and labels, and all that it has."""

    address: Text
    version: Text
    rack: Text = ""
    site: Text = ""
    swarms: tuple[SwarmState, ...] = ()
    name: Text = ""  # what people call the node, for example its Kubernetes node name
    warms: bool = False  # it understands the question "warm"
    # Random, of this process: tells a restart from a second agent with the same id. 0: an older release.
    instance: int = 0
    tells: bool = False  # it understands `NodeQuestion`
    keeps: bool = False  # it understands `KeepOrders`
    role: Literal["", "seed", "cache", "client"] = ""  # `keep_orders.ROLES`; "": an older release
    # KEY=VALUE, for people's choice of nodes.
    labels: Annotated[tuple[Text, ...], Meta(max_length=MAX_LABELS)] = ()
    room_bytes: int = 0  # as in `Heartbeat`
    link_bytes_s: int = 0  # what its link carries; 0: not known


class EndedPull(_Message, frozen=True):
    """A pull or a warm that ended on the agent's node, for people to see."""

    # Empty: it failed before this was known.
    digest: Annotated[str, Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
    label: Label  # a ref of the model; empty if it isn't known to be one
    code: Annotated[int, Meta(ge=0, le=255)]  # exit code
    seconds: Seconds  # its duration
    total_bytes: Figure  # of what was pulled
    taken: tuple[Figure, Figure, Figure]  # as in `SwarmState`, for this pull


class Heartbeat(_Message, tag=2, frozen=True):
    """Sign of life every `heartbeat_s`, with the swarms that are active or whose have-set or leases changed."""

    load: int = 0
    swarms: tuple[SwarmState, ...] = ()
    free_bytes: int = 0
    cached_bytes: int = 0
    ended: tuple[EndedPull, ...] = ()  # since the last one; all are checked, `MAX_ENDED` are heard
    # What it can give to parts that it is ordered to keep, with those that it keeps already; 0: it doesn't say.
    room_bytes: int = 0
    quota_bytes: int = 0  # of its cache; 0: none


class Enter(_Message, tag=3, frozen=True):
    """The agent takes part in a swarm: it has or wants runs. Answered with `Swarm`."""

    swarm: SwarmState


class Exit(_Message, tag=4, frozen=True):
    """The agent has nothing of this model any more, or doesn't serve it."""

    digest: str


class LeaseReport(_Message, tag=5, frozen=True):
    """What became of leases, batched."""

    digest: str
    epoch: int
    done: tuple[RunIndex, ...] = ()
    failed: tuple[RunIndex, ...] = ()
    mismatched: tuple[RunIndex, ...] = ()
    returned: tuple[RunIndex, ...] = ()
    credit: int = -1  # new credit, or -1: as before
    wanted: bytes = b""  # with a credit: the only runs whose leases it can use; empty: all
    demanded: tuple[RunIndex, ...] = ()  # a loader waits for these: they are to be read first
    flow_s: Seconds = 0.0  # of a run in `done`: from its first byte to its end; 0: not known


class Stuck(_Message, tag=6, frozen=True):
    """No neighbour has had these runs for long, and none has any of the runs in `lacks` at the moment."""

    digest: str
    runs: tuple[RunIndex, ...]
    lacks: bytes = b""  # bitmap of runs that it wants and has no lease for; empty: an older release
    vain: tuple[NodeId, ...] = ()  # neighbours that claim some of these runs and deliver nothing
    gives: tuple[NodeId, ...] = ()  # named in `vain` before: they deliver now


class Blame(_Message, tag=7, frozen=True):
    """A node sent bytes that don't match the manifest."""

    node: NodeId
    digest: str
    run: RunIndex


class Leaving(_Message, tag=8, frozen=True):
    """Orderly end of the membership: the tracker forgets the agent now."""


class Ask(_Message, tag=9, frozen=True):
    """A question; answered by exactly one `Answer` or `Refusal` with the same id.

    `what`: "resolve" (ref -> JSON TagRecord fields), "manifest" (digest, offset -> bytes),
    "nodes", "status" (-> JSON), "locate" (ref -> JSON: who has it), "moved" (ref: forget the cached tag),
    "warm" (JSON -> JSON: a number of nodes is to get a model), "admit" (JSON: may one more copy come),
    "pulls", "history" (rows of each node -> JSON: what runs, and what ended, on all nodes),
    "tag_put" (origin without conditional put: the tracker writes, alone).
    """

    id: int
    what: str
    text: str = ""
    offset: int = 0


class NodeAnswer(_Message, tag=11, frozen=True):
    """The one answer to a `NodeQuestion`: rows as JSON, a manifest's bytes or a state, or an exit code and one line."""

    id: int
    data: bytes = b""
    code: int = 0
    message: str = ""


# -- tracker to agent ---------------------------------------------------------------------------


class Settled(_Message, tag=32, frozen=True):
    """First message after `Announce`: the agent is a member."""

    epoch: int
    origin: str  # URL of the default origin, "" if none
    heartbeat_s: float
    lease_ttl_s: float
    fenced: bool = False  # the epoch is a tenure's generation: what has a lower one is void
    doubt_s: float = 0.0  # of silence after which agents go on without it; 0: only when it is lost


class Swarm(_Message, tag=33, frozen=True):
    """A swarm's members. `full`: `joined` is the whole list; else a delta to `version - 1`.

    With the digest `EVERYBODY`: all nodes of a small cluster, or nothing if it isn't small any more.
    """

    digest: str
    version: int
    full: bool
    joined: tuple[Member, ...] = ()
    left: tuple[NodeId, ...] = ()
    neighbours: tuple[NodeId, ...] = ()  # to dial, in order of preference; may be empty in deltas
    # Indices 7 and 8 are taken: the tracker of the release before names suppliers and roots there (docs/lab/0042).


class Grant(_Message, tag=34, frozen=True):
    """The agent may read these runs from the origin until `lease_ttl_s` after its last heartbeat."""

    digest: str
    epoch: int
    runs: tuple[RunIndex, ...]
    # Leases of the model that all members have now, for a node that loses the tracker. 0: an older release.
    in_flight: Annotated[int, Meta(ge=0, le=MAX_CHUNKS)] = 0


class Revoke(_Message, tag=35, frozen=True):
    """These leases end: somebody waits for the runs, and their reader is far too slow."""

    digest: str
    runs: tuple[RunIndex, ...]


class Stop(_Message, tag=36, frozen=True):
    """No more leases for this model: the origin has wrong bytes (exit 6 everywhere), or this agent read wrong ones."""

    digest: str
    run: RunIndex
    reason: str
    odd: int = 0  # 0: nobody gets leases; else why this agent alone gets none (`odd_reason`)


class Poll(_Message, tag=37, frozen=True):
    """A holder left: the agent says now what it has of this model. Answered with a `Heartbeat`."""

    digest: str


class Answer(_Message, tag=38, frozen=True):
    """The good end of an `Ask`. `total`: bytes of the whole answer, of which `data` may be a part."""

    id: int
    data: bytes
    total: int = 0


class Refusal(_Message, tag=39, frozen=True):
    """The bad end of an `Ask`: exit code of the cause, and one line."""

    id: int
    code: int
    message: str


class ClonedId(_Message, tag=41, frozen=True):
    """Another live agent has the same node id and was refused. Sent only to agents that announced an `instance`."""

    address: str


class Standby(_Message, tag=43, frozen=True):
    """Instead of `Settled`: this tracker isn't the active one. It comes again when another one is, or none.

    The connection ends when this tracker becomes the active one.
    """

    active: Text = ""  # the active one's URL; "": not known


class NodeQuestion(_Message, tag=42, frozen=True):
    """What runs ("pulls") or ended ("history") on this node, how full is it ("room"), why has it a model ("model")?

    "manifest": the next `NODE_MANIFEST_BYTES` of a model's manifest; fewer: it ends there.
    "warm": fetch a model, after all that somebody waits for; answered with its state: "had", "getting" or "started".
    Sent only to agents that announced `tells`, "warm" to those that announced `warms`.
    """

    id: int
    what: str
    limit: int = 0  # rows; of "manifest": where the part begins
    text: str = ""  # of "model" and "manifest": the manifest's digest; of "warm": a ref


ToTracker = (
    Announce | Heartbeat | Enter | Exit | LeaseReport | Stuck | Blame | Leaving | Ask | NodeAnswer
    | KeptReport
)  # fmt: skip
ToAgent = (
    Settled | Swarm | Grant | Revoke | Stop | Poll | Answer | Refusal | ClonedId | NodeQuestion
    | Standby | KeepOrders
)  # fmt: skip

# How messages that list swarms begin: a MessagePack array of up to 15 fields, then the tag.
_LONG = frozenset(bytes((0x90 | fields, tag)) for fields in range(16) for tag in (1, 2))

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_to_tracker: msgspec.msgpack.Decoder[ToTracker] = msgspec.msgpack.Decoder(ToTracker)
_to_agent: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)


def encode(message: ToTracker | ToAgent) -> bytes:
    """One message as one WebSocket payload."""
    return _encoder.encode(message)


def decode_to_tracker(data: bytes) -> ToTracker:
    """Parse what an agent sent.

    Raises:
        RemoteProtocolError: not a message of this protocol.
    """
    if len(data) > MAX_SHORT_BYTES and data[:2] not in _LONG:
        raise RemoteProtocolError(f"a message of {len(data)} bytes that lists no swarms")
    return _decode(_to_tracker, data, "an agent")


def decode_to_agent(data: bytes) -> ToAgent:
    """Parse what a tracker sent.

    Raises:
        RemoteProtocolError: not a message of this protocol.
    """
    return _decode(_to_agent, data, "the tracker")


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes, sender: str) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"bad message from {sender}: {error}") from None
