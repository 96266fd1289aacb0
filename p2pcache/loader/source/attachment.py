"""The threads that keep a load attached to the node's agent.

One reads the agent's events and attaches again after a loss, one sends demands.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from p2pcache.core import bitset
from p2pcache.errors import IntegrityError, Lost, NotFound, P2PCacheError, Unreachable
from p2pcache.ids import Ref, RunIndex, RunSet
from p2pcache.io.http.client import AgentClient

log = logging.getLogger(__name__)

# How long a lost agent is tried again. systemd starts an agent within a second; then it opens its cache.
REATTACH_S = 10.0
# How long a load without an origin tries. It is longer than REATTACH_S, since a DaemonSet's update takes a
# minute, a busy machine delays an agent's answer, and a failed load costs an engine's whole start.
REATTACH_WITHOUT_ORIGIN_S = 60.0
_PAUSE_S = 0.2  # between two tries
_PAIRS_A_CALL = 4096  # ranges of runs in one demand: a body of about 60 KB

Json = dict[str, Any]


class Attachment:
    """One load at one agent. `on_event` and `on_lost` are called on threads of this object.

    A lost agent is tried again for `REATTACH_S` (`REATTACH_WITHOUT_ORIGIN_S`), and hears again which
    runs are needed. An agent that was never reached is an error at once.
    """

    def __init__(
        self,
        client: AgentClient,
        ref: Ref,
        *,
        needed: bool,
        has_origin: bool,
        on_event: Callable[[Json], None],
        on_lost: Callable[[P2PCacheError], None],
    ) -> None:
        """Nothing is asked before `start`.

        Args:
            client: of the agent.
            ref: the model.
            needed: only what `demand` names is fetched.
            has_origin: the load can go on without the agent.
            on_event: gets each event. `resolved` comes again after each new attachment; the agent has
                then forgotten which demands were urgent.
            on_lost: gets the reason, once, if the events end without `done`.
        """
        self.digest = ""  # of the model, once it is resolved
        self._client = client
        self._ref = ref
        self._needed = needed
        self._has_origin = has_origin
        self._on_event = on_event
        self._on_lost = on_lost
        self._closed = threading.Event()
        self._load = ""  # the agent's name for this attachment; "" while there is none
        self._needed_runs: RunSet = 0  # the next agent must hear of them
        self._lock = threading.Lock()
        self._outgoing: queue.SimpleQueue[tuple[RunSet, bool] | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start two daemon threads, so that a call that hangs can't delay the end of the process."""
        threading.Thread(target=self._follow, name="p2pcache-load", daemon=True).start()
        threading.Thread(target=self._send_demands, name="p2pcache-demand", daemon=True).start()

    def demand(self, runs: RunSet, *, urgent: bool) -> None:
        """Tell the agent that these runs are needed. Returns at once.

        Args:
            runs: the runs.
            urgent: they come before everything else.
        """
        with self._lock:
            self._needed_runs |= runs
        self._outgoing.put((runs, urgent))

    def close(self) -> None:
        """Detach. More than once does no harm."""
        self._closed.set()
        self._outgoing.put(None)

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
                    patience_s = REATTACH_S if self._has_origin else REATTACH_WITHOUT_ORIGIN_S
                    give_up = now + patience_s
                    self._warn(lost, "going on with what is here" if attached
                              else f"trying again for {patience_s:g} s")  # fmt: skip
                if now >= give_up:
                    break
                self._closed.wait(_PAUSE_S)
            except P2PCacheError as refused:
                error = refused
                break
        if error is not None and not self._closed.is_set():
            self._on_lost(error)

    def _warn(self, lost: P2PCacheError, then: str) -> None:
        if not self._closed.is_set():
            log.warning("%s: %s; %s", self._ref, what_happened(lost), then)

    def _listen(self) -> None:
        """Read the events of one attachment, until `done` or `close`.

        All but the first are of the digest that it told: a tag may have moved, and its new model would be begun.
        """
        ref = str(self._ref._replace(digest=self.digest or self._ref.digest))
        with contextlib.closing(self._client.load(ref, needed=self._needed)) as events:
            for event in events:
                if self._closed.is_set():
                    return
                if event["event"] in ("resolved", "done"):
                    self._check_digest(str(event.get("digest")))
                if event["event"] == "resolved":  # before `on_event`, which may demand at once
                    with self._lock:
                        self._load, again = str(event.get("load")), self._needed_runs
                    if again and self._needed:
                        self._outgoing.put((again, False))
                self._on_event(event)

    def _check_digest(self, digest: str) -> None:
        if self.digest not in ("", digest):
            raise IntegrityError(f"{self._ref}: the agent sent another model (blake3:{digest})")
        self.digest = digest

    def _send_demands(self) -> None:
        while (demand := self._outgoing.get()) is not None:
            runs, urgent = demand
            load = self._load
            if not load:
                continue  # `_listen` demands again once there is one
            pairs = list(_run_ranges(runs))
            try:
                for i in range(0, len(pairs), _PAIRS_A_CALL):
                    self._client.demand(load, pairs[i : i + _PAIRS_A_CALL], urgent=urgent)
            except (Unreachable, NotFound) as error:  # `_follow` notices, too
                log.debug("demand: %s", error)
            except P2PCacheError as error:
                log.warning("%s: the agent refused a demand: %s", self._ref, error)


def what_happened(error: P2PCacheError) -> str:
    """An error's message without the advice after its semicolon: here nobody has to act."""
    return str(error).partition(";")[0]


def _run_ranges(runs: RunSet) -> Iterable[tuple[RunIndex, RunIndex]]:
    """The set as half-open ranges, ascending."""
    while runs:
        start = bitset.first(runs)
        length = bitset.first(~(runs >> start))
        yield start, start + length
        runs &= ~(bitset.full(length) << start)
