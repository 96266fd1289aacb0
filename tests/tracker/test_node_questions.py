"""Rows of all nodes: what one node says can't spoil the answer."""

import asyncio
from typing import Any

import msgspec
import pytest

from p2pcache.core.coordinator.tracker_state import TrackerState
from p2pcache.core.protocol import messages as m
from p2pcache.core.settings import LeaseSettings, MemberSettings
from p2pcache.errors import UsageError
from p2pcache.tracker import node_questions
from p2pcache.tracker.node_questions import NodeQuestions

ROW: dict[str, Any] = {
    "ended": 5.0, "action": "pull", "ref": "a:b", "digest": "", "bytes": 1, "seconds": 1.0, "rate": 1,
    "bytes_origin": 0, "bytes_peers": 0, "bytes_local": 0, "code": 0, "message": "", "times": 1,
}  # fmt: skip


def cluster(answers: dict[int, bytes | None], *, older: int = 0) -> tuple[NodeQuestions, list[Any]]:
    """Nodes that answer so (None: not at all), and what they were asked."""
    state = TrackerState(epoch=1, members=MemberSettings(), leases=LeaseSettings())
    for node in (*answers, *range(900, 900 + older)):
        tells = node in answers
        state.handle(node, m.Announce(f"10.0.0.1:{node}", "1", name=f"n{node}", tells=tells), 0.0)
    questions = NodeQuestions(state)
    asked: list[Any] = []

    def send(node: int, message: m.ToAgent) -> bool:
        assert isinstance(message, m.NodeQuestion)
        asked.append(message)
        data = answers[node]
        if data is not None:
            answer = m.NodeAnswer(message.id, data)
            asyncio.get_running_loop().call_soon(questions.on_told, node, answer)
        return True

    questions.send_to = send
    return questions, asked


async def history(questions: NodeQuestions, limit: str = "") -> tuple[list[dict[str, Any]], int]:
    told = await questions.ask_nodes("history", limit)
    assert isinstance(told["history"], list)
    assert isinstance(told["silent"], int)
    return told["history"], told["silent"]


def rows(*some: dict[str, Any]) -> bytes:
    return msgspec.json.encode([ROW | each for each in some])


async def test_rows_come_with_their_nodes_the_newest_first() -> None:
    two = {1: rows({"ended": 3.0}), 2: rows({"ended": 9.0}, {"ended": 1.0})}
    questions, asked = cluster({**two}, older=2)
    found, silent = await history(questions, "7")
    assert [(row["name"], row["ended"]) for row in found] == [("n2", 9.0), ("n1", 3.0), ("n2", 1.0)]
    assert silent == 0
    assert (await questions.ask_nodes("history", "7"))["older"] == 2
    assert {message.limit for message in asked} == {7}


@pytest.mark.parametrize("odd", [
    b"", b"{}", b"[1]", b"[" * 10_000, b"\xff", rows({"ended": "now"}), rows({"code": 4000}),
    rows({"message": "x" * 501}), rows(*[{}] * 2000),
])  # fmt: skip
async def test_an_odd_node_is_left_out(odd: bytes) -> None:
    questions, _ = cluster({1: rows({}), 2: odd})
    found, silent = await history(questions)
    assert [row["name"] for row in found] == ["n1"]
    assert silent == 1


async def test_a_node_cannot_speak_for_another() -> None:
    questions, _ = cluster({1: rows({"node": "00000000000000ff", "name": "boss", "extra": [1]})})
    ((row,), _) = await history(questions)
    assert (row["node"], row["name"]) == ("0000000000000001", "n1")
    assert "extra" not in row


async def test_no_node_tells_more_than_it_was_asked_for() -> None:
    questions, _ = cluster({1: rows(*[{}] * 50)})
    assert len((await history(questions, "3"))[0]) == 3


async def test_a_silent_node_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_questions, "ANSWER_S", 0.1)
    questions, asked = cluster({1: rows({}), 2: None})
    for found, silent in await asyncio.gather(history(questions, "5"), history(questions, "5")):
        assert ([row["name"] for row in found], silent) == (["n1"], 1)
    assert len(asked) == 2  # the same question at once is asked once


async def test_a_late_answer_is_nobody_s() -> None:
    questions, _ = cluster({1: rows({})})
    questions.on_told(1, m.NodeAnswer(77, rows({})))
    with pytest.raises(UsageError):
        await questions.ask_nodes("history", "many")
