"""Options that are made from settings classes, and how a daemon reads its settings."""

from pathlib import Path

import msgspec
import pytest

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.commands.program.config import SECTIONS
from p2pcache.cli.support.setting_options import field_docs
from tests.cli.conftest import Run


@pytest.mark.parametrize("kind", SECTIONS.values())
def test_every_setting_says_what_it_is_for_and_has_a_default(kind: type[msgspec.Struct]) -> None:
    docs = field_docs(kind)
    assert set(docs) == set(kind.__struct_fields__)
    assert all(text.endswith(".") for text in docs.values())
    kind()


@pytest.mark.parametrize("room", ["agent", "tracker"])
def test_a_daemon_takes_its_settings_from_everywhere(
    run: Run, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[msgspec.Struct] = []

    def fake_run(settings: msgspec.Struct, *_more: object) -> int:
        got.append(settings)
        return 7

    monkeypatch.setattr(f"p2pcache.{room}.main.run", fake_run)
    file = tmp_path / "c.toml"
    file.write_text(f'[{room}]\nlisten = "127.0.0.1:1"\nlog_level = "debug"\n')
    result = run(
        room,
        "--config",
        file,
        "--listen",
        "127.0.0.1:2",
        "--insecure",
        env={"P2PCACHE_ORIGIN": "file:///x"},
        standalone_mode=False,
    )
    assert result.return_value == 7
    settings = msgspec.structs.asdict(got[0])
    assert (settings["listen"], settings["log_level"], settings["origin"]) == (
        "127.0.0.1:2",
        "debug",
        "file:///x",
    )
    assert settings["insecure"] is True


@pytest.mark.parametrize("words", [
    ["--tracker", "http://a:1,http://b:1"], ["--tracker", "http://a:1", "--tracker", "http://b:1"],
])  # fmt: skip
def test_several_trackers_are_one_flag_or_two(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    got: list[AgentSettings] = []
    monkeypatch.setattr("p2pcache.agent.main.run", lambda settings, _sources: got.append(settings))
    run("agent", *words, standalone_mode=False)
    assert got[0].tracker == "http://a:1,http://b:1"
    run("agent", env={"P2PCACHE_TRACKER": "http://c:1"}, standalone_mode=False)
    assert got[1].tracker == "http://c:1"
