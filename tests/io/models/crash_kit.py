"""Rehearsing crashes: a disk that dies at the n-th step, and one that records what it does.

The recorded trace is replayed into a fresh directory with whatever wasn't synced dropped at
random: writes, or halves of them, and changes of names, each by itself. That is harsher than
any journalling file system.
"""

import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from p2pcache.io.disk.agent_db import Records
from p2pcache.io.disk.disk import Disk

STEPS = (
    "ensure_directory", "open_write", "write_at", "copy_range", "allocate",
    "truncate", "chmod", "rename", "link", "symlink", "unlink", "rmdir", "sync", "sync_data",
    "sync_all", "punch",
)  # fmt: skip


class DyingDisk(Disk):
    """Kills its own process with SIGKILL at step `fatal`; half of a fatal write is done."""

    def __init__(self, fatal: int) -> None:
        self.steps = 0
        self.fatal = fatal

    def step(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.steps += 1
        if self.steps == self.fatal:
            if name == "write_at":
                fd, data, offset = arguments
                os.pwrite(fd, memoryview(data)[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)


def _counted(name: str) -> Callable[..., Any]:
    original = getattr(Disk, name)

    def step(self: DyingDisk, *args: Any, **options: Any) -> Any:
        self.step(name, args)
        return original(self, *args, **options)

    return step


for _name in STEPS:
    setattr(DyingDisk, _name, _counted(_name))


def in_child(work: Callable[[], None], kill_after_s: float | None = None) -> int:
    """Run `work` in a forked process; its exit status (negative: the signal that ended it)."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001  the parent sees the status
            os._exit(1)
    if kill_after_s is not None:
        signal.sigtimedwait([signal.SIGCHLD], kill_after_s)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


class Op(NamedTuple):
    """One recorded change. `files`: what it changes (inode numbers of the recording)."""

    kind: str
    files: tuple[int, ...]
    value: Any = None
    mtime_ns: int = 0


class RecordingDisk(Disk):
    """Records each change, by numbers that are never used twice."""

    def __init__(self) -> None:
        self.trace: list[Op] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = 0

    def number(self, fd: int, *, fresh: bool = False) -> int:
        info = os.fstat(fd)
        key = (info.st_dev, info.st_ino)
        if fresh or key not in self._numbers:
            self._numbers[key] = self._next
            self._next += 1
        return self._numbers[key]

    def _log(self, kind: str, *fds: int, value: Any = None, mtime_ns: int = 0) -> None:
        self.trace.append(Op(kind, tuple(self.number(fd) for fd in fds), value, mtime_ns))

    def ensure_directory(self, parent: int, name: str, mode: int) -> int:
        there = name in os.listdir(parent)
        fd = super().ensure_directory(parent, name, mode)
        self.number(parent)
        if not there:
            number = self.number(fd, fresh=True)
            self.trace.append(Op("mkdir", (self.number(parent),), (name, number)))
        return fd

    def open_write(self, parent: int, name: str, *, create: bool) -> int:
        there = name in os.listdir(parent)
        fd = super().open_write(parent, name, create=create)
        if not there:
            number = self.number(fd, fresh=True)
            self.trace.append(Op("create", (self.number(parent),), (name, number)))
        return fd

    def write_at(self, fd: int, data: memoryview | bytes, offset: int) -> None:
        super().write_at(fd, data, offset)
        self._log("write", fd, value=(offset, bytes(data)), mtime_ns=os.fstat(fd).st_mtime_ns)

    def copy_range(self, source: int, start: int, target: int, offset: int, length: int) -> None:
        self.write_at(target, os.pread(source, length, start), offset)

    def allocate(self, fd: int, size_bytes: int) -> bool:
        self.truncate(fd, size_bytes)
        return True

    def truncate(self, fd: int, size_bytes: int) -> None:
        super().truncate(fd, size_bytes)
        self._log("truncate", fd, value=size_bytes, mtime_ns=os.fstat(fd).st_mtime_ns)

    def punch(self, fd: int, offset: int, length: int) -> bool:
        self.write_at(fd, bytes(length), offset)
        return True

    def rename(self, source: int, old: str, target: int, new: str) -> None:
        super().rename(source, old, target, new)
        self._log("rename", source, target, value=(old, new))

    def link(self, source: int, old: str, target: int, new: str) -> None:
        super().link(source, old, target, new)
        info = os.stat(old, dir_fd=source)
        number = self._numbers[info.st_dev, info.st_ino]
        self._log("link", target, value=(new, number))

    def symlink(self, text: str, parent: int, name: str) -> None:
        super().symlink(text, parent, name)
        self._log("symlink", parent, value=(name, text))

    def unlink(self, parent: int, name: str) -> None:
        super().unlink(parent, name)
        self._log("unlink", parent, value=name)

    def rmdir(self, parent: int, name: str) -> None:
        super().rmdir(parent, name)
        self._log("unlink", parent, value=name)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._log("sync", fd)

    def sync_data(self, fd: int) -> None:
        super().sync_data(fd)
        self._log("sync", fd)

    def sync_all(self, fd: int) -> None:
        self.trace.append(Op("sync all", ()))

    @contextmanager
    def with_records(self) -> Iterator[None]:
        """Record the database's durable states too, while this is active."""
        original = Records._write

        @contextmanager
        def write(records: Records) -> Iterator[sqlite3.Connection]:
            with original(records) as db:
                yield db
            self.trace.append(Op("records", (), records._db.serialize()))

        Records._write = write  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Records._write = original  # type: ignore[method-assign]


class _Node:
    """A file or directory while it's being rebuilt."""

    def __init__(self) -> None:
        self.names: dict[str, _Node | str] | None = None
        self.data = bytearray()
        self.mtime_ns = 0


def rebuild(trace: list[Op], cut: int, dice: random.Random, target: Path) -> None:
    """What a power cut after `cut` operations may leave behind.

    Args:
        trace: the recorded operations; operation 0 concerns the cache dir itself.
        cut: how many of them happened.
        dice: decides what of the unsynced survives.
        target: where to put it (missing directory).
    """
    durable = _durable(trace[:cut])
    keep = dice.choice([0.0, 0.3, 0.7, 0.95])
    root = _Node()
    root.names = {}
    nodes: dict[int, _Node] = {trace[0].files[0]: root}
    records = b""
    for op, safe in zip(trace[:cut], durable, strict=True):
        if op.kind == "records":
            records = op.value
        elif op.kind in ("write", "truncate"):
            _apply_data(nodes, op, safe=safe, keep=keep, dice=dice)
        elif op.kind in ("sync", "sync all"):
            continue
        elif safe or dice.random() < keep:
            _apply_names(nodes, op)
        else:
            _forget_new(nodes, op)
    _write_out(root, target)
    if records:
        (target / "agent.db").write_bytes(records)


def _durable(trace: list[Op]) -> list[bool]:
    """Which operations a later sync made durable: of all files that they touch."""
    synced: set[int] = set()
    everything = False
    found = []
    for op in reversed(trace):
        if op.kind == "sync":
            synced.add(op.files[0])
        elif op.kind == "sync all":
            everything = True
        found.append(everything or all(f in synced for f in op.files))
    return found[::-1]


def _apply_data(
    nodes: dict[int, _Node], op: Op, *, safe: bool, keep: float, dice: random.Random
) -> None:
    node = nodes.setdefault(op.files[0], _Node())
    node.mtime_ns = op.mtime_ns  # a time stamp may be durable though the bytes are not
    if op.kind == "truncate":
        size = op.value
        node.data = node.data[:size] + bytes(size - min(size, len(node.data)))
        return
    offset, data = op.value
    if not safe:
        data = data[: len(data) if dice.random() < keep else dice.randrange(len(data) + 1)]
        if dice.random() > keep:
            return
    if len(node.data) < offset:
        node.data += bytes(offset - len(node.data))
    node.data[offset : offset + len(data)] = data


def _forget_new(nodes: dict[int, _Node], op: Op) -> None:
    if op.kind in ("mkdir", "create"):  # nameless, but later operations may still give it a name
        node = nodes.setdefault(op.value[1], _Node())
        node.names = {} if op.kind == "mkdir" else None


def _apply_names(nodes: dict[int, _Node], op: Op) -> None:
    if not op.files or nodes.get(op.files[0]) is None:
        return
    names = nodes[op.files[0]].names
    assert names is not None
    if op.kind in ("mkdir", "create"):
        _forget_new(nodes, op)
        names[op.value[0]] = nodes[op.value[1]]
    elif op.kind == "link":
        names[op.value[0]] = nodes[op.value[1]]
    elif op.kind == "symlink":
        names[op.value[0]] = op.value[1]
    elif op.kind == "unlink":
        names.pop(op.value, None)
    elif op.kind == "rename" and op.value[0] in names:
        moved = names.pop(op.value[0])
        target = nodes[op.files[1]].names
        assert target is not None
        target[op.value[1]] = moved


def _write_out(node: _Node, path: Path, made: dict[int, Path] | None = None) -> None:
    made = {} if made is None else made
    path.mkdir()
    for name, entry in (node.names or {}).items():
        place = path / name
        if isinstance(entry, str):
            place.symlink_to(entry)
        elif entry.names is not None:
            _write_out(entry, place, made)
        elif id(entry) in made:
            place.hardlink_to(made[id(entry)])
        else:
            place.write_bytes(entry.data)
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
            made[id(entry)] = place
