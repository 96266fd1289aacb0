"""How a torrent process talks with its agent: JSON objects, one a line, both ways."""

import queue
import sys
import threading
from typing import Protocol, TypeVar

import msgspec

OrderT_contra = TypeVar("OrderT_contra", contravariant=True)


class Worker(Protocol[OrderT_contra]):
    """What a process does."""

    def look(self) -> None:
        """Hear what happened, for a moment."""

    def obey(self, order: OrderT_contra) -> None:
        """Do what the agent wants."""


def say(what: dict[str, object]) -> None:
    """Tell the agent something."""
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


def work_until_input_ends(worker: Worker[OrderT_contra], order: type[OrderT_contra]) -> None:
    """Let a worker look, and obey each order when it comes.

    Raises:
        msgspec.MsgspecError: a line isn't an order.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    while True:
        worker.look()
        while not lines.empty():
            line = lines.get()
            if not line:
                return
            worker.obey(msgspec.json.decode(line, type=order))


def _read_lines(lines: "queue.SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    lines.put(b"")
