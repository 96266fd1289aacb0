"""Pushes that have begun: a model whose client still sends stays, and one of a client that is silent may go."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

SENDING_S = 5.0  # between two requests of one push a busy client takes milliseconds
BEGUN_S = 60.0  # a push without a byte for this long gives its disk space to others that need it
MAX_BEGUN = 10_000  # pushes whose last byte is remembered


@dataclass(slots=True)
class PushRequest:
    """A request of a push, while it runs."""

    last: bool = False  # the push ends with it


class BegunPushes:
    """When clients last sent something of their pushes, by digest of the model.

    Invariant: `_running` has no zeros.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """None has begun. `now`: monotonic seconds."""
        self._now = now
        self._sent: dict[str, float] = {}
        self._running: Counter[str] = Counter()  # requests that run

    @contextlib.contextmanager
    def request(self, digest: str) -> Iterator[PushRequest]:
        """A request of a push, while it runs. The end of another push of the same model takes nothing from it."""
        self._running[digest] += 1
        request = PushRequest()
        try:
            yield request
        finally:
            self._running -= Counter((digest,))
            if not request.last:
                self.on_sent(digest)
            elif digest not in self._running:
                self.forget(digest)

    def on_sent(self, digest: str) -> None:
        """A client has just sent something of this model."""
        self.forget(digest)
        self._sent[digest] = self._now()
        if len(self._sent) > MAX_BEGUN:
            del self._sent[next(iter(self._sent))]

    def forget(self, digest: str) -> None:
        """Nothing was sent of this model: it goes, or its push has ended."""
        self._sent.pop(digest, None)

    def sent_at(self, digest: str) -> float:
        """When a client last sent something of this model; -inf: that isn't known."""
        return self._sent.get(digest, -inf)

    @property
    def sending(self) -> set[str]:
        """Digests of the models that a client sends now, or is about to send more of."""
        return self._since(SENDING_S)

    @property
    def promised(self) -> set[str]:
        """Digests of the models whose disk space is promised to a push."""
        return self._since(BEGUN_S)

    def _since(self, seconds: float) -> set[str]:
        now = self._now()
        return self._running.keys() | {d for d, sent in self._sent.items() if now - sent < seconds}
