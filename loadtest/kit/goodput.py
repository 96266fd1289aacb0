"""The TCP goodput of single flows on the shaped links: what the bound T_LB is computed with."""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial

from loadtest.kit.netns import Host, in_namespace

PORT = 9  # discard
BUFFER_BYTES = 1 << 20
WARM_UP_S = 0.7  # slow start is over and the shaper's first burst is spent
MEASURE_S = 2.5  # with 1 % of error from the buffers at either end
CONNECT_S = 5.0


def goodput(
    sender: Host, receivers: Sequence[Host], measure_s: float = MEASURE_S,
    warm_up_s: float = WARM_UP_S, flows_each: int = 1, ended: threading.Event | None = None,
) -> float:  # fmt: skip
    """Bytes per second that flows from `sender` to each receiver carry, all flows together.

    Args:
        sender: where they begin.
        receivers: where they end.
        measure_s: how long it is counted.
        warm_up_s: and how long not, before.
        flows_each: flows to each receiver.
        ended: count until it is set, whatever `measure_s`, from the first byte on.
    """
    listeners = [in_namespace(host, partial(_listen, host)) for host in receivers]
    flows = [
        in_namespace(sender, partial(_connect, host))
        for host in receivers for _ in range(flows_each)
    ]  # fmt: skip
    accepted = [listener.accept()[0] for listener in listeners for _ in range(flows_each)]
    counts = [0] * len(accepted)
    stop = threading.Event()
    threads = [threading.Thread(target=_send, args=(flow, stop)) for flow in flows]
    threads += [
        threading.Thread(target=_count, args=(s, counts, n)) for n, s in enumerate(accepted)
    ]
    for thread in threads:
        thread.start()
    if ended is None:
        time.sleep(warm_up_s)
    before, start = sum(counts), time.monotonic()
    if ended is None:
        time.sleep(measure_s)
    else:
        ended.wait()
    after, end = sum(counts), time.monotonic()
    stop.set()
    for each in [*flows, *accepted]:
        with contextlib.suppress(OSError):  # the other end may have closed it already
            each.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for each in [*flows, *accepted, *listeners]:
        each.close()
    return (after - before) / (end - start)


def _listen(host: Host) -> socket.socket:
    listener = socket.create_server((host.address, PORT))
    listener.settimeout(CONNECT_S)
    return listener


def _connect(host: Host) -> socket.socket:
    return socket.create_connection((host.address, PORT), timeout=CONNECT_S)


def _send(flow: socket.socket, stop: threading.Event) -> None:
    data = bytes(BUFFER_BYTES)
    with contextlib.suppress(OSError):  # the end of the measurement closes it under us
        while not stop.is_set():
            flow.send(data)


def _count(flow: socket.socket, counts: list[int], number: int) -> None:
    buffer = bytearray(BUFFER_BYTES)
    with contextlib.suppress(OSError):
        while received := flow.recv_into(buffer):
            counts[number] += received
