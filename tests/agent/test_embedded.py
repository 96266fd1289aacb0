"""An agent inside a command: what a pull without a daemon gets, and what it doesn't import."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from p2pcache.agent.embedded import run_lone
from p2pcache.agent.settings import AgentSettings
from p2pcache.errors import NotFound
from p2pcache.ids import Ref
from tests.agent.kit import make_model, push

DATA = random.Random(7).randbytes(3_000_000)
REF = Ref.parse("team/m:v1")
OPTIONS = {
    "force_generation": False, "include": (), "exclude": (), "background": False, "hold": "",
    "hold_s": 0.0, "hold_pid": 0,
}  # fmt: skip
UNUSED = ("aiohttp", "prometheus_client", "OpenSSL", "cryptography", "psutil")


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    push(tmp_path / "origin", make_model(tmp_path / "model", {"w.bin": DATA}), str(REF))
    return AgentSettings(
        cache_dir=str(tmp_path / "cache"), origin=(tmp_path / "origin").as_uri(), min_free_bytes=0,
    )  # fmt: skip


def test_a_lone_pull_tells_the_same_as_a_call_of_the_api(settings: AgentSettings) -> None:
    with run_lone(settings) as pull:
        told = list(pull(REF, **OPTIONS))
    done = told[-1]
    assert [told[0]["event"], done["event"]] == ["resolved", "done"]
    assert done["bytes_origin"] == len(DATA)
    assert (Path(done["models_dir"]) / done["path"] / "w.bin").read_bytes() == DATA


def test_its_errors_come_as_they_are(settings: AgentSettings) -> None:
    with run_lone(settings) as pull, pytest.raises(NotFound, match="team/other"):
        list(pull(Ref.parse("team/other:v1"), **OPTIONS))


def test_a_pull_that_is_left_stops_reading(settings: AgentSettings) -> None:
    slow = {"origin_bytes_per_s": 500_000, "shutdown_s": 1.0}
    fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
    with run_lone(AgentSettings(**fields | slow)) as pull:
        events = pull(REF, **OPTIONS)
        assert next(events)["event"] == "resolved"
        events.close()
    with run_lone(settings) as pull:
        assert list(pull(REF, **OPTIONS))[-1]["event"] == "done"


def test_a_hold_is_kept(settings: AgentSettings) -> None:
    for _ in range(2):
        with run_lone(settings) as pull:
            assert list(pull(REF, **OPTIONS | {"hold": "mine"}))[-1]["event"] == "done"


def test_a_lone_agent_imports_nothing_that_it_doesnt_use() -> None:
    code = "import sys, p2pcache.agent.fetching.lone, p2pcache.io.origins.s3.origin; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [name for name in UNUSED if name in done.stdout.split()] == []
