"""Pauses that double with each failure. Pure."""

_MOST_TIMES = 64  # beyond any limit; a float ends at 1,023 (a night without storage, or five minutes of refusals)


def pause_s(first_s: float, most_s: float, failures: int) -> float:
    """Seconds to pause after so many failures before this one: twice as long each time, up to `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures, _MOST_TIMES))
