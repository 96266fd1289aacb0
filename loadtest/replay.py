"""`python -m loadtest.replay FILE`: a recorded scheduler, lived again.

An agent with `--record-dir DIR` writes what each pull's scheduler hears into DIR. This feeds it into the
production scheduler, checks after every event that the invariants hold and that it answers as it
did then, and prints what happened when. `--run N` tells one run's story, up to where the recording ends.

Exit code 0: the same answers throughout; 1: another answer, or a broken invariant (both say at which
event); 2: not a recording.
"""

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from p2pcache import __version__
from p2pcache.core.scheduler import recording
from p2pcache.core.scheduler.scheduler import Scheduler
from p2pcache.core.swarm import commands as c
from p2pcache.core.swarm import events as e
from p2pcache.core.units import format_bytes, format_duration
from p2pcache.errors import LocalProtocolError, UsageError

ROWS = 24  # of the timeline: a screen


@dataclass(slots=True)
class Moment:
    """Where a scheduler stood at one time."""

    at_s: float  # since the start
    have: int  # runs
    bytes_peers: int
    bytes_origin: int
    neighbours: int
    waits_for: str


@dataclass(slots=True)
class Replay:
    """What came of it.

    Attributes:
        events: how many, by kind.
        commands: how many, by kind.
        moments: the timeline.
        fault: where the replay went another way than the recording; empty: nowhere.
        cut: the recording's last line is incomplete, as a crash leaves it.
    """

    head: recording.Head
    scheduler: Scheduler
    events: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    moments: list[Moment] = field(default_factory=list)
    notes: list[tuple[float, str]] = field(default_factory=list)
    fault: str = ""
    cut: bool = False


def replay(path: Path) -> Replay:
    """Live a recording again.

    Raises:
        UsageError: it isn't one.
    """
    try:
        with path.open("rb") as file:
            head = recording.read_head(file.readline())
            result = Replay(head, head.scheduler())
            for number, step in enumerate(_steps(file, result), 2):
                if not _live(result, step, number):
                    break
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return result


def _steps(lines: Iterator[bytes], result: Replay) -> Iterator[recording.Step]:
    for line in lines:
        if not line.endswith(b"\n"):
            result.cut = True
            return
        yield recording.read_step(line)


def _live(result: Replay, step: recording.Step, number: int) -> bool:
    """One event; whether it went as it did then."""
    scheduler, at_s = result.scheduler, step.now - result.head.now
    try:
        answer = scheduler.handle(step.event, step.now)
        scheduler.check()
    except (AssertionError, LocalProtocolError) as error:
        result.fault = f"line {number}, {at_s:.3f} s: {type(step.event).__name__}: {error!r}"
        return False
    result.events[type(step.event).__name__] += 1
    result.commands.update(type(command).__name__ for command in answer)
    _note(result, step, answer)
    if recording.checksum(answer) != step.commands:
        said = ", ".join(type(command).__name__ for command in answer) or "nothing"
        result.fault = (
            f"line {number}, {at_s:.3f} s: {type(step.event).__name__} is answered by {said}, "
            f"not as release {result.head.release} answered (this is {__version__})"
        )
        return False
    return True


def _note(result: Replay, step: recording.Step, answer: list[c.Command]) -> None:
    """Keep what a timeline shows."""
    at_s = step.now - result.head.now
    counters, view = result.scheduler.counters, result.scheduler.view(step.now)
    result.moments.append(Moment(
        at_s, result.scheduler.have.bit_count(), counters.bytes_peers, counters.bytes_origin,
        len(view.peers), view.waits_for,
    ))  # fmt: skip
    match step.event:
        case e.PeerLeft(peer):
            result.notes.append((at_s, f"{peer:016x} left"))
        case e.TrackerDown() | e.TrackerUp():
            result.notes.append((at_s, type(step.event).__name__))
        case e.FetchEnded(_, outcome) if outcome is not e.Outcome.DONE:
            result.notes.append((at_s, f"a read of the origin ended: {outcome.name.lower()}"))
    for command in answer:
        if isinstance(command, c.Blame | c.Stuck | c.CutOff | c.OriginCorrupt | c.Finished):
            result.notes.append((at_s, _words(command)))


def _words(command: c.Command) -> str:
    match command:
        case c.Blame(peer, run):
            return f"blames {peer:016x} for run {run}"
        case c.Stuck(runs):
            return f"tells the tracker that nobody has {runs.bit_count()} runs"
        case c.CutOff():
            return "reaches no other node, and reads the origin itself"
        case c.OriginCorrupt(run):
            return f"calls the origin's run {run} wrong"
    return "finished"


def as_text(result: Replay, run: int | None = None) -> str:
    """The timeline, the notes, one run's story."""
    head, last = result.head, result.moments[-1] if result.moments else None
    total, count = sum(head.run_bytes), len(head.run_bytes)
    title = (
        f"model blake3:{head.digest[:12]}.., {format_bytes(total)} in {count} runs; node {head.node}, "
        f"release {head.release}; {sum(result.events.values())} events in "
        f"{format_duration(last.at_s if last else 0.0)}"
    )
    lines = [
        title, "", "   seconds   runs   done  from peers   from origin  peers  waits for",
        *(_row(moment, count) for moment in _sampled(result.moments)),
        "", *(f"{at_s:10.3f}  {text}" for at_s, text in result.notes[:ROWS]),
    ]  # fmt: skip
    if len(result.notes) > ROWS:
        lines.append(f"            .. and {len(result.notes) - ROWS} more")
    lines += ["", "events:   " + _counts(result.events), "commands: " + _counts(result.commands)]
    if run is not None:
        story = (line.partition(" ") for line in result.scheduler.story(run))
        told = (f"{float(at) - head.now:10.3f}  {text}" for at, _, text in story)
        lines += ["", f"run {run}:", *told]
    lines += ["", "the last line is incomplete: what came after it is lost"] if result.cut else []
    verdict = "the same answers throughout; check() held after every event"
    lines += ["", f"WRONG: {result.fault}" if result.fault else verdict]
    return "\n".join(lines)


def _row(moment: Moment, count: int) -> str:
    return (
        f"{moment.at_s:10.3f} {moment.have:6} {moment.have / count:6.1%} {format_bytes(moment.bytes_peers):>11} "
        f"{format_bytes(moment.bytes_origin):>13} {moment.neighbours:6}  {moment.waits_for or '-'}"
    )


def _sampled(moments: list[Moment]) -> list[Moment]:
    """The last moment of each equal part of the time."""
    if not moments:
        return []
    part_s = max(moments[-1].at_s, 1e-9) / ROWS
    groups = itertools.groupby(moments, key=lambda m: min(ROWS - 1, int(m.at_s / part_s)))
    return [list(group)[-1] for _, group in groups]


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counter.most_common()) or "none"


def _check_run(result: Replay, run: int | None) -> None:
    last = len(result.head.run_bytes) - 1
    if run is not None and not 0 <= run <= last:
        raise UsageError(f"no run {run}: this model has 0 to {last}")


def main(argv: list[str] | None = None) -> int:
    """Replay one recording."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.replay", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("file", type=Path, help="DIGEST-NODE-MILLISECONDS.events.jsonl")
    parser.add_argument("--run", type=int, help="also tell this run's story")
    options = parser.parse_args(argv)
    try:
        result = replay(options.file)
        _check_run(result, options.run)
    except UsageError as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    print(as_text(result, options.run))
    return 1 if result.fault else 0


if __name__ == "__main__":
    sys.exit(main())
