"""The thread that keeps a load attached to the node's agent: events in, demands out, again after a loss."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from p2pcache.core import bitset
from p2pcache.errors import IntegrityError, Lost, NotFound, P2PCacheError, Unreachable
from p2pcache.ids import Ref
from p2pcache.io.http.client import AgentClient

log = logging.getLogger(__name__)

REATTACH_S = 10.0  # systemd starts an agent again within a second, and it then opens its cache
# Who has nowhere else to get the rest from waits longer: a DaemonSet's update takes a minute, a load
# that ends costs an engine's whole start, and on a busy machine agents took over 10 s to answer.
REATTACH_ALONE_S = 60.0
_PAUSE_S = 0.2
_PAIRS_A_CALL = 4096  # a body of some 60 KB

Json = dict[str, Any]


class Attachment:
    """One load at one agent. `on_event` and `on_lost` are called on threads of this object.

    An agent that was reached and is lost is tried again for `REATTACH_S` (`REATTACH_ALONE_S`), and
    what was needed is told again; one that isn't there at all is an error at once.
    """

    def __init__(
        self,
        client: AgentClient,
        ref: Ref,
        *,
        needed: bool,
        alone: bool,
        on_event: Callable[[Json], None],
        on_lost: Callable[[P2PCacheError], None],
    ) -> None:
        """Nothing is asked before `start`.

        Args:
            client: of the agent.
            ref: the model.
            needed: only what `demand` names is fetched.
            alone: without the agent this load can't go on.
            on_event: told each event, `resolved` again after each new attachment: demands that were
                urgent before it are forgotten.
            on_lost: told once why there will be no more events, unless `done` was one.
        """
        self.digest = ""  # of the model, once it is resolved
        self._client = client
        self._ref = ref
        self._needed = needed
        self._alone = alone
        self._on_event = on_event
        self._on_lost = on_lost
        self._closed = threading.Event()
        self._load = ""  # the agent's name for this load; "" while there is none
        self._told = 0  # runs (bits) that the agent must hear of again
        self._lock = threading.Lock()
        self._asks: queue.SimpleQueue[tuple[int, bool] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Begin, on two daemon threads: a call that hangs holds up nobody's end."""
        threading.Thread(target=self._follow, name="p2pcache-load", daemon=True).start()
        threading.Thread(target=self._demands, name="p2pcache-demand", daemon=True).start()

    def demand(self, runs: int, *, urgent: bool) -> None:
        """These runs (bits) are needed; `urgent`: before everything else. Returns at once."""
        with self._lock:
            self._told |= runs
        self._asks.put((runs, urgent))

    def close(self) -> None:
        """Detach. More than once does no harm."""
        self._closed.set()
        self._asks.put(None)

    def _follow(self) -> None:
        error: P2PCacheError | None = None
        give_up = 0.0
        while not self._closed.is_set():
            try:
                self._listen()
                return
            except Unreachable as lost:
                error, attached = lost, bool(self._load)
                self._load = ""
                now = time.monotonic()
                if attached or (not give_up and isinstance(lost, Lost)):
                    patience_s = REATTACH_ALONE_S if self._alone else REATTACH_S
                    give_up = now + patience_s
                    self._say(lost, "going on with what is here" if attached
                              else f"trying again for {patience_s:g} s")  # fmt: skip
                if now >= give_up:
                    break
                self._closed.wait(_PAUSE_S)
            except P2PCacheError as refused:
                error = refused
                break
        if error is not None and not self._closed.is_set():
            self._on_lost(error)

    def _say(self, lost: P2PCacheError, then: str) -> None:
        if not self._closed.is_set():
            log.warning("%s: %s; %s", self._ref, what_happened(lost), then)

    def _listen(self) -> None:
        """One attachment, until `done` or `close`."""
        ref = str(self._ref)
        with contextlib.closing(self._client.load(ref, needed=self._needed)) as events:
            for event in events:
                if self._closed.is_set():
                    return
                if event["event"] in ("resolved", "done"):
                    self._check_digest(str(event.get("digest")))
                if event["event"] == "resolved":  # who hears of it may demand at once
                    with self._lock:
                        self._load, again = str(event.get("load")), self._told
                    if again and self._needed:
                        self._asks.put((again, False))
                self._on_event(event)

    def _check_digest(self, digest: str) -> None:
        if self.digest and digest != self.digest:
            raise IntegrityError(
                f"{self._ref} became another model (blake3:{digest[:12]}..) while it was loaded; load it again"
            )
        self.digest = digest

    def _demands(self) -> None:
        while (ask := self._asks.get()) is not None:
            runs, urgent = ask
            load = self._load
            if not load:
                continue  # told again when there is one
            pairs = list(_pairs(runs))
            try:
                for i in range(0, len(pairs), _PAIRS_A_CALL):
                    self._client.demand(load, pairs[i : i + _PAIRS_A_CALL], urgent=urgent)
            except (Unreachable, NotFound) as error:  # the stream's thread sees to it
                log.debug("demand: %s", error)
            except P2PCacheError as error:
                log.warning("%s: the agent refused a demand: %s", self._ref, error)


def what_happened(error: P2PCacheError) -> str:
    """An error's words without the advice that follows: it's for those whose command ended."""
    return str(error).partition(";")[0]


def _pairs(runs: int) -> Iterable[tuple[int, int]]:
    """The set as half-open ranges, ascending."""
    while runs:
        start = bitset.first(runs)
        length = bitset.first(~(runs >> start))
        yield start, start + length
        runs &= ~(bitset.full(length) << start)
