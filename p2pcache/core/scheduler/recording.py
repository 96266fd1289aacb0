"""The events of a scheduler as lines, so that the same scheduler can be run again.

Each line is a JSON document: first a `Head`, then for each event `[seconds, name, fields, commands]`. `commands` is a
checksum of the scheduler's answer. The same events and the same seed give the same commands, so a recording from the
field replays exactly, or the checksum shows where it doesn't.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.settings import SwarmSettings
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.errors import UsageError

VERSION = 4
_MOST = 1 << 63  # larger numbers are written as hex: a run set has a bit for each run
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(e.Event)}


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments that a scheduler was made with, and where."""

    version: int  # of the recording
    release: str  # of p2pcache: another one may decide otherwise
    digest: str  # of the model
    node: str  # hex
    run_bytes: tuple[int, ...]
    have: str  # hex
    settings: dict[str, int | float]
    seed: int
    tracker: bool
    now: float  # seconds, of the clock of all times in the recording

    def scheduler(self) -> Scheduler:
        """The scheduler as it was at the start.

        Raises:
            UsageError: its settings aren't those of this release.
        """
        try:
            return Scheduler(
                node=int(self.node, 16), run_bytes=self.run_bytes, have=int(self.have, 16),
                settings=SwarmSettings(**self.settings),  # type: ignore[arg-type] # as recorded
                seed=self.seed, tracker=self.tracker, now=self.now,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"release {self.release} recorded this, and its settings aren't ours: {error}"
            ) from None


class Step(NamedTuple):
    """One event of a recording."""

    now: float
    event: e.Event
    commands: int  # checksum


def head_line(head: Head) -> bytes:
    """Encode the first line."""
    return msgspec.json.encode(head) + b"\n"


def step_line(now: float, event: e.Event, commands: Sequence[c.Command]) -> bytes:
    """Encode the line of one event and of what the scheduler answered."""
    step = (now, type(event).__name__, _fields(event), checksum(commands))
    return msgspec.json.encode(step) + b"\n"


def read_head(line: bytes) -> Head:
    """Decode the first line.

    Raises:
        UsageError: it isn't one.
    """
    try:
        head = msgspec.json.decode(line, type=Head)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not a recording of a scheduler: {error}") from None
    if head.version != VERSION:
        raise UsageError(
            f"release {head.release} made this recording, of version {head.version}, and this one reads {VERSION}: "
            "replay it with that release"
        )
    return head


def read_step(line: bytes) -> Step:
    """Decode the line of one event.

    Raises:
        UsageError: it isn't one.
    """
    try:
        now, name, values, commands = msgspec.json.decode(
            line, type=tuple[float, str, dict[str, Any], int]
        )
        plain = {key: int(v, 16) if isinstance(v, str) else v for key, v in values.items()}
        return Step(now, msgspec.convert(plain, _KINDS[name]), commands)
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise UsageError(f"not a line of a recording: {error!r}") from None


def checksum(commands: Iterable[c.Command]) -> int:
    """A checksum of a scheduler's answer; 0 for none. It finds differences, not forgeries."""
    said = [(type(command).__name__, _fields(command)) for command in commands]
    return zlib.crc32(msgspec.json.encode(said)) if said else 0


def _fields(one: Any) -> dict[str, Any]:
    values = ((name, getattr(one, name)) for name in one.__struct_fields__)
    return {
        name: hex(value) if isinstance(value, int) and abs(value) >= _MOST else value
        for name, value in values
    }
