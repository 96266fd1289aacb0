"""How long somebody who is told "busy" comes back."""

import time

from p2pcache.errors import Busy


class Patience:
    """Waits as it is told to, until its time is over."""

    def __init__(self, limit_s: float) -> None:
        self._deadline = time.monotonic() + limit_s

    def wait(self, error: Busy) -> None:
        """Sleep for as long as the other side asked for, and some dice; raises `error` when that's too long."""
        import random  # most calls never wait

        pause = error.retry_after_s * random.SystemRandom().uniform(1.0, 2.0)
        if time.monotonic() + pause > self._deadline:
            raise error
        time.sleep(pause)
