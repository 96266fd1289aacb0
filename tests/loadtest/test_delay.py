"""The delay line: packets wait their time, in order, and a full queue drops; over TUN devices too."""

import itertools
import os
import socket
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.kit.delay import QUEUE_S, TUN, Port
from loadtest.kit.goodput import goodput
from loadtest.kit.netns import Fabric, FabricError, in_namespace

needs_tun = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(TUN, os.R_OK | os.W_OK), reason="needs root and TUN devices"
)
DELAY_S = 0.03


def test_a_packet_arrives_after_the_delay() -> None:
    port = Port(0, DELAY_S)
    port.take(b"one", 10.0)
    assert port.due_at == 10.0 + DELAY_S
    assert port.due(10.0) == []
    assert port.due(10.0 + DELAY_S) == [b"one"]
    assert port.due_at is None


def test_a_link_sends_one_after_the_other() -> None:
    port = Port(0, DELAY_S)
    port.rate_bytes_s = 1000.0
    port.take(bytes(10), 0.0)
    port.take(bytes(20), 0.0)
    assert port.due(0.01 + DELAY_S) == [bytes(10)]
    assert port.due_at == pytest.approx(0.03 + DELAY_S)


def test_each_packet_may_be_lost_by_itself() -> None:
    port = Port(1, DELAY_S, loss=0.1)
    for number in range(2000):
        port.take(number.to_bytes(4, "big"), 0.0)
    arrived = [int.from_bytes(packet, "big") for packet in port.due(float("inf"))]
    assert len(arrived) + port.lost == 2000
    assert 140 < port.lost < 260
    assert arrived == sorted(arrived)
    gaps = [b - a for a, b in itertools.pairwise(arrived)]
    assert gaps.count(2) > 5 * gaps.count(3) > 0  # no bursts


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 1500)), max_size=200))
def test_in_order_none_twice_and_only_a_full_queue_drops(packets: list[tuple[float, int]]) -> None:
    port, now, sent = Port(0, DELAY_S), 0.0, []
    port.rate_bytes_s = 10_000.0
    arrived: list[bytes] = []
    for number, (pause_s, size) in enumerate(packets):
        now += pause_s
        before = port.dropped
        port.take(packet := number.to_bytes(4, "big") + bytes(size), now)
        if port.dropped == before:
            sent.append(packet)
        arrived += port.due(now)
    assert port.due_at is None or port.due_at <= now + QUEUE_S + 0.2 + DELAY_S
    arrived += port.due(float("inf"))
    assert arrived == sent


@pytest.mark.netns
@needs_tun
def test_hosts_are_so_far_from_each_other_and_no_faster_than_shaped() -> None:
    rate = 1e6
    with Fabric(DELAY_S) as fabric:
        with pytest.raises(FabricError, match="racks"):
            fabric.add_rack(rate)
        one, other = (fabric.add(f"n{n}", rate_bytes_s=rate) for n in range(2))
        listen = partial(socket.create_server, (other.address, 99))
        with in_namespace(other, listen) as listener:
            connect = partial(socket.create_connection, listener.getsockname(), 30.0)
            began = time.monotonic()
            in_namespace(one, connect).close()
            assert time.monotonic() - began >= 2 * DELAY_S
        assert 0 < goodput(one, [other], measure_s=1.0) < 1.5 * rate  # bursts
