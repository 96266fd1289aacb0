"""The agent's schedulers. With `record_dir` set, their events and commands are written into files."""

from pathlib import Path

import p2pcache
from p2pcache.agent.context import AgentContext
from p2pcache.core.format.layout import Layout
from p2pcache.core.scheduler import recording
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.ids import RunSet
from p2pcache.io.notes.recorder import Recorder, settings_of


class RecordedScheduler(Scheduler):
    """A scheduler whose events and commands go into a file until its download ends."""

    recorder: Recorder

    def handle(self, event: e.Event, now: float) -> list[c.Command]:
        """Handle an event as a scheduler, and record it."""
        commands: list[c.Command] = []
        try:
            commands = super().handle(event, now)
            return commands
        finally:  # an event that raises is recorded, too: recordings are for such faults
            self.recorder.record(now, event, commands)


def make_scheduler(
    context: AgentContext, layout: Layout, have: RunSet, settings: SwarmSettings
) -> Scheduler:
    """Make the scheduler of one model on this node; `have`: the runs that are proved here."""
    record = context.settings.record_dir
    seed, now, tracker = context.rng.getrandbits(32), context.now(), context.link is not None
    made = (RecordedScheduler if record else Scheduler)(
        node=context.node, run_bytes=layout.run_bytes, have=have, settings=settings, seed=seed,
        tracker=tracker, now=now,
    )  # fmt: skip
    if isinstance(made, RecordedScheduler):
        head = recording.Head(
            recording.VERSION, p2pcache.__version__, layout.digest, f"{context.node:x}",
            tuple(layout.run_bytes), f"{have:x}", settings_of(settings), seed, tracker, now,
        )  # fmt: skip
        made.recorder = Recorder(Path(record), context.settings.record_bytes, head)
    return made


def end_recording(scheduler: Scheduler | None) -> None:
    """Close the recording of a scheduler that gets no more events."""
    if isinstance(scheduler, RecordedScheduler):
        scheduler.recorder.close()
