"""A stranger who asks why a lease was granted reads at most fourteen modules of core."""

import sys
from collections.abc import Callable
from types import FrameType

from msgspec.structs import replace

from p2pcache.core.protocol import messages as m
from tests.core.coordinator.tracking_kit import World, state

MOST = 14


def modules_of(call: Callable[[], object]) -> set[str]:
    """The modules of core in which code runs during a call."""
    seen: set[str] = set()

    def note(frame: FrameType, _event: str, _arg: object) -> None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("p2pcache.core."):
            seen.add(name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return seen


def test_a_heartbeat_that_leads_to_a_grant_passes_fourteen_modules() -> None:
    world = World()
    for node in (1, 2, 3):
        world.join(node, credit=0)
    beat = m.Heartbeat(swarms=(replace(state(credit=4), taken=(1, 2, 3)),))
    sent: list[object] = []
    seen = modules_of(lambda: sent.extend(world.tracking.handle(1, beat, world.now)))
    assert any(isinstance(getattr(one, "message", None), m.Grant) for one in sent)
    assert "p2pcache.core.leases.reader_choice" in seen
    assert len(seen) <= MOST, sorted(seen)
