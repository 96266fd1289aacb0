"""The figures of a load, and the line that it logs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from p2pcache.core.units import counted, format_bytes, format_duration
from p2pcache.loader.format.header import shown
from p2pcache.loader.source.base import SourceStats

log = logging.getLogger("p2pcache.loader")
_SHOWN = 3  # names in a message


def left_over(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Which names of target and model have no partner, in words; "" if all have.

    Args:
        missing: names of the target.
        unexpected: names of the model.
    """
    parts = []
    for kind, found in (("the model lacks", missing), ("the target lacks", unexpected)):
        if found:
            some = ", ".join(map(shown, found[:_SHOWN])) + (", ..." if len(found) > _SHOWN else "")
            parts.append(f"{kind} {counted(len(found), 'tensor')} ({some})")
    return ", ".join(parts)


@dataclass(slots=True)
class Waits:
    """Seconds that were waited, by stage. They overlap; the largest shows what limited the load."""

    source_s: float = 0.0  # for bytes that hadn't arrived
    memory_s: float = 0.0  # for memory below the limit: the consumer was slower than the source
    reading_s: float = 0.0  # in reads, summed over all threads
    ring_s: float = 0.0  # for a ring slot: all were being copied to the device
    consumer_s: float = 0.0  # of the consumer, for a tensor


@dataclass(slots=True)
class LoadReport:
    """Figures of one load."""

    model: str = ""
    tensors: int = 0
    bytes: int = 0  # of the tensors that were handed out
    bytes_read: int = 0  # from files: more than `bytes` where gaps between slices were read
    seconds: float = 0.0
    memory_limit_bytes: int = 0
    memory_peak_bytes: int = 0  # of the memory that the limit bounds
    mapped: bool = False  # host tensors are mappings of the model's files
    waits: Waits = field(default_factory=Waits)
    source: SourceStats = field(default_factory=SourceStats)
    failed: bool = False
    missing_keys: list[str] = field(default_factory=list)  # names of the target, left as they were
    unexpected_keys: list[str] = field(default_factory=list)  # names of the model without a target

    @property
    def gb_per_s(self) -> float:
        """Rate of handed out bytes, in 10^9 bytes per second."""
        return self.bytes / 1e9 / self.seconds if self.seconds else 0.0

    def line(self) -> str:
        """The one line that a load logs."""
        s, w = self.source, self.waits
        unmatched = left_over(self.missing_keys, self.unexpected_keys)
        total = s.bytes_peers + s.bytes_origin + s.bytes_disk
        shares = ", ".join(
            f"{name} {100 * n / total:.0f}%"
            for name, n in (("peers", s.bytes_peers), ("origin", s.bytes_origin),
                            ("disk", s.bytes_disk))
            if n
        )  # fmt: skip
        return (
            f"{'failed to load' if self.failed else 'loaded'} {self.model}: {counted(self.tensors, 'tensor')}, "
            f"{format_bytes(self.bytes)} in {format_duration(self.seconds)} ({format_bytes(self.gb_per_s * 1e9)}/s)"
            f"{'; ' + unmatched if unmatched else ''}{'; from ' + shares if shares else ''}"
            f"{f'; {s.verified_chunks} chunks verified' if s.digest else ''}{self._memory()}; "
            f"waits: source {w.source_s:.1f}s, memory {w.memory_s:.1f}s, reading {w.reading_s:.1f}s, "
            f"ring {w.ring_s:.1f}s, consumer {w.consumer_s:.1f}s"
            + "".join(f"; {note}" for note in s.notes)
        )

    def _memory(self) -> str:
        if self.mapped:
            return "; mapped"
        if not self.memory_limit_bytes:  # an open model holds no memory
            return ""
        limit = format_bytes(self.memory_limit_bytes)
        return f"; memory {format_bytes(self.memory_peak_bytes)} of {limit}"

    def log(self) -> None:
        """Log the line, at INFO."""
        log.info("%s", self.line())
