"""Whoever has the key may call under any id and name any address: only some dials are spent on that."""

import dataclasses
import socket

from p2pcache.core.protocol.address import can_be_tried
from p2pcache.core.ratelimit import Rate
from tests.io.peers.kit import QUICK, make_model, node

MODEL = make_model([4096] * 2, seed=5)
DIGEST = MODEL.layout.digest


def test_no_names_and_no_numbers_of_the_link_are_dialled() -> None:
    for address in ("10.0.0.1:7401", "[fd00::1]:7401", "127.0.0.1:1"):
        assert can_be_tried(address)
    for address in (
        "169.254.169.254:80", "localhost:7401", "metadata.internal:80", "[fe80::1]:7401", "[fe80::1%eth0]:7401",
        "0.0.0.0:7401", "224.0.0.1:7401", "[::ffff:169.254.169.254]:80",
    ):  # fmt: skip
        assert not can_be_tried(address), address


async def test_callers_cost_a_bounded_number_of_dials_a_second() -> None:
    limits = dataclasses.replace(QUICK, dial_backs=Rate(0.001, 5))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as victim:
        address = f"127.0.0.1:{victim.getsockname()[1]}"
        async with node(1, limits=limits) as one:
            one.swarm(MODEL)
            net = one.net
            went = [net.dial_back(DIGEST, 100 + i, address) for i in range(50)]
            refused = net.dial_back(DIGEST, 200, "169.254.169.254:80")
    assert went == [True] * 5 + [False] * 45
    assert not refused


async def test_callers_that_never_greet_hold_a_bounded_number_of_connections() -> None:
    limits = dataclasses.replace(QUICK, dial_backs=Rate(1000, 1000), dial_backs_open=7)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as victim:
        address = f"127.0.0.1:{victim.getsockname()[1]}"
        async with node(1, limits=limits) as one:
            one.swarm(MODEL)
            net = one.net
            went = [net.dial_back(DIGEST, 100 + i, address) for i in range(50)]
    assert sum(went) == 7
