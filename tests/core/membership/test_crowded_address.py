"""Which stranger makes room for another."""

import pytest

from p2pcache.core.membership.crowded_address import crowd_of, oldest_of_the_crowd


def test_the_oldest_of_the_most_crowded_goes() -> None:
    guests = ["b1", "a1", "c1", "a2", "c2", "c3"]
    assert oldest_of_the_crowd(guests, lambda guest: guest[0]) == "c1"
    assert oldest_of_the_crowd(guests[:4], lambda guest: guest[0]) == "a1"
    assert oldest_of_the_crowd(guests[:3], lambda guest: guest[0]) == "b1"  # of equals, too
    assert oldest_of_the_crowd([], str) is None


@pytest.mark.parametrize(
    ("address", "crowd"),
    [
        ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::/64"),
        ("fd00::ffff:0:2", "fd00::/64"), ("fe80::1%eth0", "fe80::/64"), ("somebody", "somebody"), ("", ""),
    ],
)  # fmt: skip
def test_a_subnet_of_ipv6_is_one_address(address: str, crowd: str) -> None:
    assert crowd_of(address) == crowd
