"""How long a pull waits to hear what a tag means now, when the model that it last meant is complete here.

A node must start its pods during an outage, so it doesn't wait for the retries of storage that is away. But
storage that is only slow must be heard: the tag may have moved.
"""

SHORT_S = 0.6  # a live tracker or store near by answers in a small part of it
FIRST_S = (
    3.0  # nothing is known yet; the first contact may have to look up names and get credentials
)
LONG_S = 5.0  # whatever the last answer took
USUALLY = 3.0  # times what the last answer took


class TagPatience:
    """Learns from answers how long the next one may take."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def learn(self, seconds: float) -> None:
        """A question was answered after so long."""
        self._last_s = seconds

    def limit_s(self, *, trouble: bool) -> float:
        """How long to wait for the next answer; `trouble`: a call to storage has failed since it last answered."""
        if trouble:
            return SHORT_S
        if self._last_s is None:
            return FIRST_S
        return min(LONG_S, max(SHORT_S, USUALLY * self._last_s))
