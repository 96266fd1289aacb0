"""Medians of recent measurements, and the one rule that calls a party far slower than the others."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass


def median(values: Iterable[float]) -> float:
    """The upper median; 0.0 of nothing."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


class RollingMedian:
    """The upper median of the last few samples.

    It is computed when it is asked for after a new sample: a decision asks more often than samples come.
    """

    __slots__ = ("_median", "_samples")

    def __init__(self, length: int) -> None:
        """No sample yet.

        Args:
            length: samples that are kept.
        """
        self._samples: deque[float] = deque(maxlen=length)
        self._median: float | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: float) -> None:
        """One sample more; the oldest one goes when `length` is reached."""
        self._samples.append(sample)
        self._median = None

    @property
    def samples(self) -> tuple[float, ...]:
        """What is kept, oldest first."""
        return tuple(self._samples)

    @property
    def median(self) -> float:
        """The upper median; 0.0 before the first sample."""
        if self._median is None:
            self._median = median(self._samples)
        return self._median

    @property
    def mean(self) -> float:
        """The arithmetic mean; 0.0 before the first sample."""
        return math.fsum(self._samples) / len(self._samples) if self._samples else 0.0


@dataclass(frozen=True, slots=True)
class Straggler:
    """When a party is far slower than the others: the thresholds of one verdict.

    A party is judged by one value that is high when it is slow: seconds a request, or seconds a byte.
    """

    ratio: float  # slow from this many times the others' value on
    min_samples: int = 1  # samples below which nobody is slow
    # Share of the parties that may be slow at once; one always may, since slow is an exception.
    max_share: float = 1.0
    rest: float = math.inf  # times its own value until a slow party is tried again

    def is_slow(self, value: float, usual: float, samples: int) -> bool:
        """Whether a value is far above the usual one.

        Args:
            value: of the party.
            usual: of the others, the median or the mean; same unit.
            samples: on which `usual` stands.
        """
        return value > self.threshold(usual, samples)

    def threshold(self, usual: float, samples: int) -> float:
        """The value above which a party is slow; inf while there are too few samples.

        Args:
            usual: of the others, the median or the mean; same unit.
            samples: on which `usual` stands.
        """
        return self.ratio * usual if samples >= self.min_samples else math.inf

    def allows_one_more(self, slow: int, parties: int) -> bool:
        """Whether one more party may be called slow.

        Args:
            slow: parties that are slow, without the one in question.
            parties: all of them.
        """
        return slow < max(1, int(self.max_share * parties))
