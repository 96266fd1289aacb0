import json
from pathlib import Path

import msgspec
import pytest

from p2pcache.cli.commands.program.config import SECTIONS
from p2pcache.errors import NotFound, UsageError
from tests.cli.conftest import Run
from tests.cli.settings_page import render

REPOSITORY = Path(__file__).parents[4]


def test_the_settings_page_is_up_to_date() -> None:
    page = (REPOSITORY / "docs/settings.md").read_text()
    assert page == render(), "run: python -m tests.cli.settings_page > docs/settings.md"


def test_a_name_means_the_same_type_in_every_section() -> None:
    """The environment is one for all rooms."""
    seen: dict[str, object] = {}
    for kind in SECTIONS.values():
        for field in msgspec.structs.fields(kind):
            assert seen.setdefault(field.name, field.type) == field.type, field.name


def test_show_says_where_each_value_came_from(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[agent]\nrack = "r1"\nmin_free_bytes = "2GiB"\n')
    env = {"P2PCACHE_ORIGIN": "https://me:secret@host/x"}
    shown = json.loads(run("config", "show", "--json", "--config", file, env=env).stdout)
    assert shown["agent"]["rack"] == {"value": "r1", "source": str(file)}
    assert shown["agent"]["min_free_bytes"]["value"] == 2 << 30
    assert shown["agent"]["socket"]["source"] == "default"
    assert shown["client"]["origin"] == {
        "value": "https://***@host/x",
        "source": "environment P2PCACHE_ORIGIN",
    }
    text = run("config", "show", "agent", "--config", file, env=env).stdout
    assert "secret" not in text
    assert "[agent]" in text
    assert "[tracker]" not in text


def test_check_says_what_is_wrong(run: Run, tmp_path: Path) -> None:
    assert run("config", "check").stdout == "no file: ok\n"
    file = tmp_path / "c.toml"
    file.write_text('[tracker]\nlisten = "127.0.0.1:1"\n')
    good = run(
        "config",
        "check",
        env={"P2PCACHE_CONFIG": str(file), "P2PCACHE_RAKC": "x", "P2PCACHE_S3_UNSIGNED": "1"},
    )
    assert good.stdout == f"{file}: ok\n"
    assert good.stderr == "note: no setting reads the variable P2PCACHE_RAKC\n"
    file.write_text("[tracker]\nlitsen = 3\n")
    bad = run("config", "check", "--config", file)
    assert isinstance(bad.exception, UsageError)
    assert "did you mean 'listen'" in str(bad.exception)
    assert isinstance(run("config", "check", "--config", tmp_path / "none").exception, NotFound)
    for where in (("--config", file, "config", "check"), ("--config", file, "config", "show")):
        assert str(run(*where).exception) == str(bad.exception), "said in front it counts, too"
    assert isinstance(
        run("config", "check", env={"P2PCACHE_UPLOAD_SLOTS": "many"}).exception, UsageError
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('[agent]\nlisten = "nope"', "[agent] listen: not an address"),
        ('[agent]\nadvertise = "10.0.0.7:0"', "[agent] advertise: is no address that other nodes"),
        ('[agent]\nrack = "r1\\n"', "[agent] rack: has characters that can't be printed: 'r1\\n'"),
        (f'[agent]\nsite = "{257 * "s"}"', "[agent] site: has 257 characters; 256 are allowed"),
        ('[agent]\nnode_name = "\\u001b[2J"', "[agent] node_name: has characters that can't be"),
        ('[agent]\nhealth_listen = "0.0.0.0:99999"', "[agent] health_listen: not a port"),
        ('[agent]\ntracker = "tracker:7400"', "[agent] tracker: not a tracker's URL"),
        ('[tracker]\norigin = "https://x"', "[tracker] origin: no origin of this kind"),
        ('[client]\nagent = "/run/x.sock"', "[client] agent: "),
        ('[agent]\ngovernor = "maybe"', "[agent] governor: 'maybe' is none of auto, on, off"),
        ("[agent]\ngovernor_floor = 2", "[agent] governor_floor: is a share of full speed"),
        ("[agent]\ngovernor_floor = 0", "[agent] governor_floor: is a share of full speed"),
        ('[agent]\nengine_metrics = "ftp://x"', "[agent] engine_metrics: ftp://x: not a URL"),
        ('[agent]\ncache_quota = "lots"', "[agent] cache_quota: not a size: 'lots'"),
        ('[agent]\ncache_quota = "120%"', "[agent] cache_quota: not a share: '120%'"),
        ('[agent]\ntorrent_sites = "x"', "[agent] torrent_sites: 'x' isn't NAMESPACE=HOST:PORT"),
        ('[agent]\nrequire_signature = "x"', "[agent] require_signature: expected NAMESPACE=FILE"),
        ('[tracker]\nnamespace_quotas = ["a=1XB"]', "[tracker] namespace_quotas: 'a=1XB': not a"),
        ("[tracker]\nneighbours = 0", "[tracker] neighbours: must be at least 1"),
    ],
)
def test_check_finds_what_a_daemon_would_refuse(
    run: Run, tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(line + "\n")
    bad = run("config", "check", "--config", file)
    assert isinstance(bad.exception, UsageError)
    assert str(bad.exception).startswith(f"{file}: {says}")


def test_check_finds_marks_the_wrong_way_round_and_where_they_stand(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[agent]\ncache_high = 0.8\n")
    low = {"P2PCACHE_CACHE_LOW": "0.9"}
    bad = run("config", "check", "--config", file, env=low).exception
    assert isinstance(bad, UsageError)
    says = f"{file}, environment P2PCACHE_CACHE_LOW: [agent] cache_low is 0.9 and cache_high 0.8: "
    assert str(bad).startswith(says)


def test_check_notes_a_source_that_none_reads(run: Run, tmp_path: Path) -> None:
    """A daemon starts with it, and opens it when it is first asked for."""
    file = tmp_path / "c.toml"
    file.write_text('[sources.x]\nurl = "ftp://x"\n')
    done = run("config", "check", "--config", file, env={"P2PCACHE_SOURCES": "y=htp://y"})
    assert (done.exit_code, done.stdout) == (0, f"{file}: ok\n")
    assert "note: [sources.x] url: no source of this kind: 'ftp://x'; expected" in done.stderr
    assert (
        "note: environment P2PCACHE_SOURCES: [sources.y] url: no source of this kind" in done.stderr
    )


def test_check_does_not_ask_for_what_only_the_daemon_s_machine_has(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[tracker]\norigin = "file:///not/mounted/here"\n')
    assert run("config", "check", "--config", file).stdout == f"{file}: ok\n"
