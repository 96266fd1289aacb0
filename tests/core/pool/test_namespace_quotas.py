"""Quotas of namespaces: their form, and when a copy is refused."""

import pytest

from p2pcache.core.pool.namespace_quotas import parse_quotas, refusal
from p2pcache.errors import UsageError


def test_the_form() -> None:
    assert parse_quotas("") == {}
    assert parse_quotas(" Team-X=2TB, library = 500GiB,") == {
        "team-x": 2 * 10**12,
        "library": 500 << 30,
    }


@pytest.mark.parametrize("text", ["team", "team=", "=2TB", "a/b=2TB", "team=2TB,TEAM=3TB", "t=-1"])
def test_what_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError, match="namespace_quotas"):
        parse_quotas(text)


def test_a_copy_is_refused_when_it_would_exceed() -> None:
    quotas = {"team": 100}
    assert refusal(quotas, "team", 60, 40) == ""
    assert refusal(quotas, "other", 10**15, 10**15) == ""
    said = refusal(quotas, "team", 61, 40)
    assert "namespace team" in said
    assert "namespace_quotas" in said
