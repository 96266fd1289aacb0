"""Settings that do nothing any more: accepted for one release, with a word about it."""

from pathlib import Path

import pytest

from tests.agent.kit import agent


async def test_recycle_bytes_is_accepted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with agent(tmp_path):
        assert "recycle_bytes" not in caplog.text
    async with agent(tmp_path, recycle_bytes=1 << 30):
        assert "recycle_bytes does nothing any more" in caplog.text
