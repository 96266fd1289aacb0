"""Speeds of this node's parts alone: hash, loopback, storage. The disk's is `host_facts.disk_speed`.

Each measurement takes about `SPAN_S`. They bound the speed of a pull here.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from blake3 import blake3

from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.base import ObjectInfo
from p2pcache.io.origins.repo import ROOT
from p2pcache.io.origins.retry import Retrying

SPAN_S = 2.0
SLICE_BYTES = 1 << 20  # as the agent receives and hashes
FILE_BYTES = 64 << 20  # sent over and over: it lies in the page cache
CONNECT_S = 5.0
RANGE_BYTES = 16 << 20  # of one read of the storage: the largest chunk
READERS = 8  # as the leases that one node works on at once
PAGE = 1000  # objects of one answer to a listing: all of the first are looked at
# Looked at to find a large one: blobs are listed by digest, and small ones are many.
OBJECTS = 10_000


class OriginSpeed(NamedTuple):
    """Speed of a storage's reads."""

    first_byte_s: float  # of one read, alone
    one: float  # bytes per second over one connection
    many: float  # bytes per second over `READERS` connections


def hash_speed() -> tuple[float, float]:
    """BLAKE3 in bytes per second: on one thread, and on one for each core."""
    return _hashing(1), _hashing(os.cpu_count() or 1)


def loopback_speed() -> float:
    """Bytes per second by sendfile into one TCP connection, received into one reused buffer.

    Raises:
        P2PCacheError: loopback doesn't work here.
    """
    try:
        return _loopback()
    except OSError as error:
        raise P2PCacheError(f"loopback: {error.strerror or error}") from None


def origin_speed(url: str) -> OriginSpeed:
    """Read a large blob of a storage, over one connection and over several.

    Raises:
        NotFound: there is nothing to read in it.
        UsageError, NotAllowed, OriginUnavailable: as the storage has it.
    """
    opened = open_origin(url)
    try:
        largest = _large_one(opened)
        if largest is None or not largest.size:
            raise NotFound(f"no model lies in {url}; push one, then measure")
        read = _reader(opened, largest.key, largest.size)
        began = time.monotonic()
        read(0, 1)
        first_byte_s = time.monotonic() - began
        return OriginSpeed(first_byte_s, _reading(read, 1), _reading(read, READERS))
    finally:
        opened.close()


def _large_one(opened: Retrying) -> ObjectInfo | None:
    """The largest blob of the first page, or of those up to the first that has a range for each reader."""
    largest = None
    for seen, info in enumerate(islice(opened.list(f"{ROOT}/blobs/"), OBJECTS), 1):
        if largest is None or info.size > largest.size:
            largest = info
        if seen >= PAGE and largest.size >= READERS * RANGE_BYTES:
            break
    return largest


def _hashing(threads: int) -> float:
    data = bytes(SLICE_BYTES)

    def one(_: int) -> int:
        done, hasher, end = 0, blake3(), time.monotonic() + SPAN_S / 2
        while time.monotonic() < end:
            hasher.update(data)
            done += SLICE_BYTES
        return done

    return _rate(one, threads)


def _loopback() -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(),), daemon=True)
        sender.start()
        server.settimeout(CONNECT_S)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(CONNECT_S)
            buffer, done = memoryview(bytearray(SLICE_BYTES)), 0
            began = time.monotonic()
            while time.monotonic() - began < SPAN_S:
                done += connection.recv_into(buffer)
            seconds = time.monotonic() - began
        sender.join(CONNECT_S)
    return done / seconds


def _send(address: tuple[str, int]) -> None:
    """Send a file again and again until the receiver hangs up."""
    file = os.memfd_create("p2pcache-bench", os.MFD_CLOEXEC)
    try:
        os.truncate(file, FILE_BYTES)
        with socket.create_connection(address, CONNECT_S) as sock:
            sock.settimeout(None)
            while True:
                offset = 0
                while offset < FILE_BYTES:
                    offset += os.sendfile(sock.fileno(), file, offset, FILE_BYTES - offset)
    except OSError:
        return  # the receiver has seen enough, or the main thread reports why it can't connect
    finally:
        os.close(file)


def _reader(opened: Retrying, key: str, size: int) -> Callable[[int, int], int]:
    """Reads one range; the ranges of a small object are taken again and again."""
    buffers = threading.local()

    def read(number: int, most: int = RANGE_BYTES) -> int:
        buffer = getattr(buffers, "slice", None)
        if buffer is None:
            buffer = buffers.slice = memoryview(bytearray(SLICE_BYTES))
        length = min(most, size)
        start = number * length % max(1, size - length + 1)
        done = 0
        with opened.open(key, start, length) as body:
            while count := body.readinto(buffer):
                done += count
        return done

    return read


def _reading(read: Callable[[int, int], int], readers: int) -> float:
    def one(reader: int) -> int:
        done, number, end = 0, reader, time.monotonic() + SPAN_S
        while time.monotonic() < end:
            done += read(number, RANGE_BYTES)
            number += readers
        return done

    return _rate(one, readers)


def _rate(work: Callable[[int], int], threads: int) -> float:
    """Bytes per second of `threads` threads together."""
    with ThreadPoolExecutor(threads, "bench") as pool:
        began = time.monotonic()
        done = sum(pool.map(work, range(threads)))
        return done / (time.monotonic() - began)
