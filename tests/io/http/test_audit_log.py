"""Lines of the audit log: one for each action, readable by machines, whatever strangers say."""

import asyncio
import logging
import shlex
from typing import Any

import pytest

from p2pcache.errors import NoSpace
from p2pcache.io.http import audit_log
from p2pcache.io.http.audit_log import MAX_VALUE_CHARS, Entry


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level(logging.INFO, audit_log.LOGGER)

    class Lines(list[str]):
        def __iter__(self) -> Any:
            return iter([record.getMessage() for record in caplog.records])

    return Lines()


def fields(lines: list[str]) -> dict[str, str]:
    (line,) = lines
    return dict(pair.split("=", 1) for pair in shlex.split(line))


def test_a_stranger_s_words_forge_no_field_and_no_line(lines: list[str]) -> None:
    evil = 'm" result=ok\nwho=root \\'
    audit_log.write("uid=7 pid=8", "rm", result="refused", ref=evil, code=None, why="")
    found = fields(lines)
    assert found == {"who": "uid=7 pid=8", "action": "rm", "ref": evil, "result": "refused"}


def test_a_long_value_is_cut(lines: list[str]) -> None:
    audit_log.write("x", "pull", result="ok", ref="r" * 10_000)
    assert len(fields(lines)["ref"]) == MAX_VALUE_CHARS + 3


def test_a_quiet_log_keeps_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(audit_log.LOGGER)
    assert logger.isEnabledFor(logging.INFO)
    assert logger.level == logging.INFO, "whatever the level of the root"


def test_an_action_that_ends_well(lines: list[str]) -> None:
    with Entry("x", "pull", ref="m") as entry:
        entry.fields["bytes"] = 3
    found = fields(lines)
    assert (found["result"], found["bytes"], found["ref"]) == ("ok", "3", "m")
    assert float(found["seconds"]) >= 0


@pytest.mark.parametrize(
    ("error", "result", "code", "why"),
    [
        (NoSpace("disk full"), "failed", str(NoSpace.exit_code), "disk full"),
        (KeyError("secret"), "failed", "1", "KeyError"),
        (asyncio.CancelledError(), "left", None, None),
        (GeneratorExit(), "left", None, None),
    ],
)
def test_an_action_that_ends_badly(
    lines: list[str], error: BaseException, result: str, code: str | None, why: str | None
) -> None:
    with pytest.raises(type(error)), Entry("x", "push"):
        raise error
    found = fields(lines)
    assert (found["result"], found.get("code"), found.get("why")) == (result, code, why)
