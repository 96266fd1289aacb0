"""The governor's loop: samples the host and the engine once a second, and applies the governor's limits."""

import logging
import math
from typing import TYPE_CHECKING

from p2pcache.agent.context import AgentContext
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.host.governor import Governor, Limits, Sample, strains_of
from p2pcache.core.swarm.events import Source
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io import pools
from p2pcache.io.host.pressure import Pressure

if TYPE_CHECKING:
    from p2pcache.io.host.engine_latency import EngineMetrics

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two samples; stalls over a shorter time are noise
SAID_S = 10.0  # a level counts for this long: its client may have died under load
MOST_LEVEL = 10.0  # higher levels change nothing


def check_floor(share: float) -> None:
    """Check the least share of full speed that a governor may leave.

    Raises:
        UsageError: it is no share.
    """
    if not 0 < share <= 1:
        raise UsageError("governor_floor is a share of full speed: above 0, at most 1")


def _engine(settings: AgentSettings) -> "EngineMetrics | None":
    if not settings.engine_metrics:
        return None
    from p2pcache.io.host.engine_latency import EngineMetrics  # aiohttp costs 0.1 s to import

    return EngineMetrics(settings.engine_metrics, settings.engine_metric, settings.engine_latency_s)


class GovernorLoop:
    """Takes samples for the governor and applies its limits to uploads and to the disk."""

    def __init__(self, context: AgentContext, settings: AgentSettings) -> None:
        """No sample yet.

        Raises:
            UsageError: a setting can't work.
        """
        check_floor(settings.governor_floor)
        self._context = context
        self._mode = settings.governor
        self._governor = Governor(
            settings.governor, floor=settings.governor_floor, slots=settings.upload_slots
        )
        self._pressure = Pressure(
            cgroup=settings.governor_cgroup, link_bytes_per_s=settings.link_bytes_per_s
        )
        self._engine = _engine(settings)
        self._said: tuple[float, float] | None = None  # the last level from a client, and its time
        self._moved = (0, 0)
        self._at = 0.0
        self.sample = Sample()

    @property
    def limits(self) -> Limits:
        """The limits that hold now."""
        return self._governor.limits

    @property
    def governs(self) -> bool:
        """Whether the limits hold this node back now."""
        return self._governor.governs

    @property
    def link_bytes_s(self) -> int:
        """What this host's quickest link carries; 0: not known."""
        return self._pressure.link_bytes_s()

    def start(self) -> None:
        """Begin to sample, unless the governor is off."""
        if self._mode != "off":
            self._context.tasks.every(LOOK_S, self.sample_and_apply, name="governor")

    def on_engine_level(self, level: float) -> None:
        """A client tells the engine's level of strain: 0 well, 1 as bad as it should ever be.

        Raises:
            UsageError: it is no level, or the governor is off.
        """
        if not (math.isfinite(level) and level >= 0):
            raise UsageError("level is a number from 0 (well) to 1 (as bad as it should ever be)")
        if self._mode == "off":
            raise UsageError("the governor is off: set `governor` to auto or on")
        self._said = (min(level, MOST_LEVEL), self._context.now())

    async def sample_and_apply(self) -> None:
        """Take one sample, and apply the limits that follow from it."""
        engine = await self._level()
        if self._mode == "auto" and engine is None and not self.governs:
            self.sample = Sample()
            return  # there is no engine to yield to, so the host's counters aren't read
        host = await pools.STEPS.run(self._pressure.sample)
        sent, taken = self._rates()
        self.sample = host._replace(engine=engine, sent=sent, taken=taken)
        before = self.limits
        limits = self._governor.handle(self.sample, self._context.now())
        if limits != before:
            self._apply(limits)
        if (before.share < 1) != (limits.share < 1):
            log.info("%s", "back at full speed" if limits.share >= 1 else _words(limits))

    def state(self) -> dict[str, object]:
        """The governor's state, for `p2pcache status`."""
        limits = self.limits
        return {
            "mode": self._mode, "share": round(limits.share, 3), "cause": limits.cause,
            "strain": {name: round(value, 3) for name, value in strains_of(self.sample).items()},
            "upload_bytes_per_s": round(limits.rate), "disk_bytes_per_s": round(limits.rate),
            "upload_slots": limits.slots, "blind": self._blind(),
        }  # fmt: skip

    def _blind(self) -> list[str]:
        missing = [] if self._mode == "off" else list(self._pressure.missing)
        if self._engine is not None and self._engine.trouble:
            missing.append(self._engine.trouble)
        return missing

    async def _level(self) -> float | None:
        now = self._context.now()
        said = self._said[0] if self._said and now - self._said[1] <= SAID_S else None
        asked = await self._engine.level() if self._engine is not None else None
        return max((level for level in (said, asked) if level is not None), default=None)

    def _rates(self) -> tuple[float, float]:
        now, taken = self._context.now(), self._context.tally.taken
        moved = (self._context.net.stats.bytes_served, taken[Source.PEER] + taken[Source.ORIGIN])
        passed, before = now - self._at, self._moved
        self._moved, first, self._at = moved, not self._at, now
        if first or passed <= 0:
            return 0.0, 0.0
        return (moved[0] - before[0]) / passed, (moved[1] - before[1]) / passed

    def _apply(self, limits: Limits) -> None:
        try:
            self._context.net.limit_uploads(limits.rate, limits.slots)
        except P2PCacheError as error:
            log.debug("the data plane isn't there: %s", error)
        self._context.disk.limit(limits.rate)


def _words(limits: Limits) -> str:
    return f"giving way to what this node serves: {limits.share:.0%} of full speed ({limits.cause})"
