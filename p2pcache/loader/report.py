"""What a load did, in one line and as figures."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.loader.format.header import shown
from p2pcache.loader.source.base import SourceStats

log = logging.getLogger("p2pcache.loader")
_SHOWN = 3  # names in a message


def left_over(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """In words, which names of the target and of the model have no partner; "" where all have."""
    told = []
    for kind, found in (("the model lacks", missing), ("the target lacks", unexpected)):
        if found:
            some = ", ".join(map(shown, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
            told.append(f"{kind} {counted(len(found), 'tensor')} ({some})")
    return ", ".join(told)


@dataclass(slots=True)
class Waits:
    """Seconds by stage. They overlap; the largest is what limited the load."""

    source_s: float = 0.0  # the next bytes had not arrived
    memory_s: float = 0.0  # the memory limit was reached: the consumer was the slower one
    reading_s: float = 0.0  # in reads, over all threads
    ring_s: float = 0.0  # every slot was being copied to the device
    consumer_s: float = 0.0  # the consumer waited for a tensor


@dataclass(slots=True)
class LoadReport:
    """Figures of one load."""

    model: str = ""
    tensors: int = 0
    bytes: int = 0  # delivered
    bytes_read: int = 0  # from files; more than `bytes` where slices are read with their gaps
    seconds: float = 0.0
    memory_limit_bytes: int = 0
    memory_peak_bytes: int = 0  # of what the limit bounds
    waits: Waits = field(default_factory=Waits)
    source: SourceStats = field(default_factory=SourceStats)
    failed: bool = False
    missing_keys: list[str] = field(default_factory=list)  # of the target, left as they were
    unexpected_keys: list[str] = field(default_factory=list)  # of the model, with no place for them

    @property
    def gb_per_s(self) -> float:
        """Delivered, in units of 10^9."""
        return self.bytes / 1e9 / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """The one line that a load logs."""
        s, w = self.source, self.waits
        apart = left_over(self.missing_keys, self.unexpected_keys)
        total = s.bytes_peers + s.bytes_origin + s.bytes_disk
        shares = ", ".join(
            f"{name} {100 * n / total:.0f}%"
            for name, n in (("peers", s.bytes_peers), ("origin", s.bytes_origin),
                            ("disk", s.bytes_disk))
            if n
        )  # fmt: skip
        return (
            f"{'failed to load' if self.failed else 'loaded'} {self.model}: {counted(self.tensors, 'tensor')}, "
            f"{format_bytes(self.bytes)} in {format_duration(self.seconds)} ({self.gb_per_s:.2f} GB/s)"
            f"{'; ' + apart if apart else ''}{'; from ' + shares if shares else ''}"
            f"{f'; {s.verified_chunks} chunks verified' if s.digest else ''}{self._memory()}; "
            f"waits: source {w.source_s:.1f}s, memory {w.memory_s:.1f}s, reading {w.reading_s:.1f}s, "
            f"ring {w.ring_s:.1f}s, consumer {w.consumer_s:.1f}s"
            + "".join(f"; {note}" for note in s.notes)
        )

    def _memory(self) -> str:
        if not self.memory_limit_bytes:  # of an open model: it holds none
            return ""
        limit = format_bytes(self.memory_limit_bytes)
        return f"; memory {format_bytes(self.memory_peak_bytes)} of {limit}"

    def log(self) -> None:
        """Say it, at INFO."""
        log.info("%s", self.line())
