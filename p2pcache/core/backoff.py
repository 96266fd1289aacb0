"""Exponential back-off: pauses that double with each failure in a row (Metcalfe and Boggs 1976)."""

# Beyond any limit; a float overflows at 1,024, which a night without storage reaches.
_MAX_DOUBLINGS = 64


def pause_s(first_s: float, most_s: float, failures: int) -> float:
    """Seconds to pause after a failure.

    Args:
        first_s: after the first failure.
        most_s: the longest pause.
        failures: in a row before this one; each doubles the pause.
    """
    return min(most_s, first_s * 2.0 ** min(failures, _MAX_DOUBLINGS))
