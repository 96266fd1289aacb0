"""The texts for people when the tracker can't be joined."""

from typing import Any

import aiohttp
import pytest
from yarl import URL

from p2pcache.agent import link_trouble
from p2pcache.errors import NotAllowed, Unreachable


def refused(status: int) -> aiohttp.WSServerHandshakeError:
    info = aiohttp.RequestInfo(URL("http://t:7400/v1/member"), "GET", {}, URL())  # type: ignore[arg-type]
    return aiohttp.WSServerHandshakeError(
        info, (), status=status, message="Invalid response status"
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, ("403", "its log", "name")), (404, ("404", "URL")), (503, ("busy", "503"))],
)
def test_http_answers_are_explained_by_their_cause(status: int, words: tuple[str, ...]) -> None:
    text = link_trouble.failure_text(refused(status), None)
    assert all(word in text for word in words)
    assert "certificate" not in text  # nobody shows one
    assert link_trouble.denied(refused(status)) == (status == 403)


def test_in_mtls_mode_a_refusal_is_about_our_certificate() -> None:
    tls: Any = object()
    assert "refuses our certificate" in link_trouble.failure_text(refused(403), tls)


def test_the_text_of_a_twin_has_cause_and_remedy() -> None:
    text = link_trouble.twin_text(255, "at 10.0.0.7:7401", "/cache")
    for word in (
        "another live agent",
        "10.0.0.7:7401",
        "00000000000000ff",
        "copied",
        "delete /cache/node-id",
    ):
        assert word in text
    assert link_trouble.denied(NotAllowed(text))
    assert not link_trouble.denied(Unreachable("it said nothing"))


@pytest.mark.parametrize("tls", [None, object()])
def test_a_peers_port_in_place_of_a_tracker_has_one_text(tls: Any) -> None:
    """It hangs up or answers in its own protocol, as it comes; with each text anew the log would never end."""
    info = aiohttp.RequestInfo(URL("http://t:7401/v1/member"), "GET", {}, URL())  # type: ignore[arg-type]
    ends: list[Exception] = [
        aiohttp.ClientResponseError(info, (), status=400, message=f"Bad status line: {noise!r}")
        for noise in (b"\x01\x92", b"\x01\xc4")
    ]
    if tls is None:
        ends += [
            aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
            aiohttp.ClientOSError(104, "Connection reset by peer"),
            aiohttp.ServerDisconnectedError(),
        ]
    [text] = {link_trouble.failure_text(end, tls) for end in ends}
    assert "is that a tracker's URL?" in text
    assert "--listen" in text
