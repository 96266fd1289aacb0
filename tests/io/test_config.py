from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import pytest

from p2pcache.errors import NotAllowed, NotFound, UsageError
from p2pcache.io import config


class Room(msgspec.Struct, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:1"
    cache_dir: str = "/var/x"
    keep_bytes: int = 5
    upload_bytes_per_s: int = 0
    wait_s: float = 2.0
    slots: int = 4
    insecure: bool = False
    log_level: Literal["info", "warning"] = "info"


def write(tmp_path: Path, text: str) -> config.ConfigFile:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return config.read_file(path)


NONE = config.ConfigFile(None, {})


def test_defaults_need_nothing() -> None:
    loaded = config.load(Room, "agent", file=NONE, environ={})
    assert loaded.settings == Room()
    assert set(loaded.sources.values()) == {"default"}


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, '[agent]\nlisten = "f:1"\ncache_dir = "/f"\nslots = 9\n')
    loaded = config.load(
        Room, "agent", file=file,
        environ={"P2PCACHE_LISTEN": "e:1", "P2PCACHE_CACHE_DIR": "/e"},
        flags={"listen": "c:1", "cache_dir": None},
    )  # fmt: skip
    assert loaded.settings == Room(listen="c:1", cache_dir="/e", slots=9)
    assert loaded.sources["listen"] == "flag"
    assert loaded.sources["cache_dir"] == "environment P2PCACHE_CACHE_DIR"
    assert loaded.sources["slots"] == str(tmp_path / "config.toml")
    assert loaded.sources["insecure"] == "default"


def test_units_follow_the_names(tmp_path: Path) -> None:
    file = write(
        tmp_path, '[agent]\nkeep_bytes = "10GiB"\nupload_bytes_per_s = "200mbit"\nwait_s = "5m"\n'
    )
    settings = config.load(
        Room, "agent", file=file, environ={"P2PCACHE_INSECURE": "yes", "P2PCACHE_SLOTS": "7"}
    ).settings
    assert settings == Room(
        keep_bytes=10 << 30, upload_bytes_per_s=25_000_000, wait_s=300.0, insecure=True, slots=7
    )


def test_plain_numbers_are_in_the_name_s_unit(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nkeep_bytes = 12\nwait_s = 3\n")
    assert config.load(Room, "agent", file=file, environ={}).settings == Room(
        keep_bytes=12, wait_s=3.0
    )


def test_an_empty_variable_counts_as_not_set() -> None:
    assert config.load(Room, "agent", file=NONE, environ={"P2PCACHE_LISTEN": ""}).settings == Room()


def test_a_tilde_is_the_home_directory_wherever_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No shell reads a file or a unit. Commands of the same setting knew it, and an agent made a directory `~`."""
    monkeypatch.setenv("HOME", "/home/u")
    file, wanted = (
        write(tmp_path, "[agent]\ncache_dir = '~/cache'\n"),
        Room(cache_dir="/home/u/cache"),
    )
    assert config.load(Room, "agent", file=file, environ={}).settings == wanted
    environ = {"P2PCACHE_CACHE_DIR": "~/cache"}
    assert config.load(Room, "agent", file=NONE, environ=environ).settings == wanted
    flags = {"cache_dir": "~/cache"}
    assert config.load(Room, "agent", file=NONE, environ={}, flags=flags).settings == wanted


def test_a_tilde_in_the_name_of_the_settings_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert config.find_file("~/c.toml", {}) == Path("/home/u/c.toml")
    assert config.find_file(None, {"P2PCACHE_CONFIG": "~/c.toml"}) == Path("/home/u/c.toml")


def test_only_the_home_of_this_user_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    assert config.whole_path("~") == "/home/u"
    assert config.whole_path("a/~/b") == "a/~/b"
    for text in ("~root", "~root/c"):
        with pytest.raises(UsageError, match=f"--cache-dir: '{text}': only ~/ is known"):
            config.load(Room, "agent", file=NONE, environ={}, flags={"cache_dir": text})


@pytest.mark.parametrize("home", ["", "rel", " "])
def test_a_home_that_is_no_whole_path(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    """With an empty one `~/cache` was `/cache`."""
    monkeypatch.setenv("HOME", home)
    with pytest.raises(UsageError, match=f"HOME is '{home}'.*give the whole path"):
        config.whole_path("~/cache")


def test_an_unknown_key_names_file_key_and_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\ncache_dri = 1\n")
    with pytest.raises(
        UsageError,
        match=r"config\.toml: \[agent\] has an unknown key 'cache_dri'; did you mean 'cache_dir'\?",
    ):
        config.load(Room, "agent", file=file, environ={})


def test_a_key_of_the_release_before_is_passed_over(tmp_path: Path) -> None:
    """A daemon whose file names a setting that is gone starts after an upgrade."""

    class Shrunk(Room, frozen=True, kw_only=True):
        retired: ClassVar[frozenset[str]] = frozenset({"trees_from"})

    file = write(tmp_path, "[tracker]\ntrees_from = 0\nslots = 9\n")
    assert config.load(Shrunk, "tracker", file=file, environ={}).settings == Shrunk(slots=9)
    with pytest.raises(UsageError, match="unknown key 'trees_from'"):
        config.load(Room, "tracker", file=file, environ={})


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_as_an_editor_on_windows_saves_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes("# caf\xe9\r\n[agent]\r\nslots = 9\r\n".encode(encoding))
    assert config.read_file(path).sections == {"agent": {"slots": 9}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[agnet]\n", r"unknown section 'agnet'; did you mean 'agent'\?"),
        ("slots = 1\n", "unknown key 'slots'"),
        ("tracker = 'http://t:7400'\n", "unknown key 'tracker' outside of a section; sections are"),
        ("[agent\n", "not valid TOML"),
        ("\xff", "not valid TOML"),
        ("x = " + "[" * 5000, "not valid TOML"),
        ("#" * (1 << 20) + "\n", "over 1 MiB"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=message):
        config.read_file(path)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("P2PCACHE_KEEP_BYTES", "ten", "P2PCACHE_KEEP_BYTES: not a size: 'ten'"),
        ("P2PCACHE_SLOTS", "many", "P2PCACHE_SLOTS: 'many' doesn't fit"),
        ("P2PCACHE_SLOTS", "-1", "negative"),
        ("P2PCACHE_INSECURE", "perhaps", "P2PCACHE_INSECURE"),
        ("P2PCACHE_WAIT_S", "soon", "not a duration"),
    ],
)
def test_a_bad_value_says_where_it_came_from(variable: str, value: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config.load(Room, "agent", file=NONE, environ={variable: value})


def test_a_wrong_type_in_the_file_says_which_key(tmp_path: Path) -> None:
    file = write(tmp_path, "[agent]\nlisten = 3\n")
    with pytest.raises(UsageError, match=r"config\.toml: \[agent\] listen: '3' doesn't fit"):
        config.load(Room, "agent", file=file, environ={})


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "SYSTEM_FILE", tmp_path / "system.toml")
    assert config.find_file(None, {}) is None
    (tmp_path / "system.toml").touch()
    assert config.find_file(None, {}) == tmp_path / "system.toml"
    assert config.find_file(None, {"P2PCACHE_CONFIG": "/e"}) == Path("/e")
    assert config.find_file("/f", {"P2PCACHE_CONFIG": "/e"}) == Path("/f")
    assert config.read_file(None) == NONE


def test_a_named_file_must_be_there_and_readable(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        config.read_file(tmp_path / "none.toml")
    with pytest.raises(NotAllowed):
        config.read_file(tmp_path)


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match=r"Is a directory; check --config or P2PCACHE_CONFIG"):
        config.read_file(tmp_path)


def test_every_section_can_be_checked(tmp_path: Path) -> None:
    file = write(tmp_path, "[tracker]\nslotz = 1\n")
    with pytest.raises(UsageError, match="did you mean 'slots'"):
        config.check_sections(file, {"tracker": Room})


def test_unknown_variables_are_listed_not_refused() -> None:
    environ = {
        "P2PCACHE_SLOTS": "1",
        "P2PCACHE_SLOTZ": "1",
        "P2PCACHE_TRACKER_PORT": "tcp://10.0.0.1:7400",
        "HOME": "/",
    }
    assert config.load(Room, "agent", file=NONE, environ=environ).settings.slots == 1
    assert config.unknown_variables(environ, {"agent": Room}) == [
        "P2PCACHE_SLOTZ",
        "P2PCACHE_TRACKER_PORT",
    ]


def test_a_password_in_a_url_is_never_shown() -> None:
    assert config.redacted("http://me:secret@host/x") == "http://***@host/x"
    assert config.redacted("http://me:se@cret@host/x") == "http://***@host/x"
    assert config.redacted("http://me:se/c@ret@host/x") == "http://***@host/x"
    for plain in (
        "s3://bucket/a@b",
        "http://host:80/a@b",
        "http://[::1]:80/a@b",
        "http://[::1]/a@b",
    ):
        assert config.redacted(plain) == plain
    with pytest.raises(UsageError) as caught:
        config.load(Room, "agent", file=NONE, environ={"P2PCACHE_SLOTS": "http://me:secret@host"})
    assert "secret" not in str(caught.value)


def test_a_level_is_known_in_any_case() -> None:
    def level(text: str) -> str:
        environ = {"P2PCACHE_LOG_LEVEL": text}
        return config.load(Room, "agent", file=NONE, environ=environ, flags={}).settings.log_level

    assert level("WARNING") == "warning"
    with pytest.raises(UsageError, match="loud"):
        level("loud")


class Several(msgspec.Struct, frozen=True, kw_only=True):
    tracker: str = ""
    listen: str = ""


def test_a_setting_of_several_values_may_be_a_list(tmp_path: Path) -> None:
    file = write(tmp_path, '[agent]\ntracker = ["http://a:1", "http://b:1"]\n')
    assert config.load(Several, "agent", file=file, environ={}).settings.tracker == (
        "http://a:1,http://b:1"
    )
    flags = {"tracker": ("http://c:1",)}
    loaded = config.load(Several, "agent", file=file, environ={}, flags=flags)
    assert loaded.settings.tracker == "http://c:1"
    for bad in ('tracker = ["a", 1]', "tracker = 5", 'listen = ["a"]'):
        with pytest.raises(UsageError, match="doesn't fit"):
            config.load(Several, "agent", file=write(tmp_path, f"[agent]\n{bad}\n"), environ={})


class Signed(msgspec.Struct, frozen=True):
    require_signature: str = ""


def test_a_setting_of_names_with_values_may_be_a_table(tmp_path: Path) -> None:
    text = '[agent.require_signature]\nacme = ["/a.pub", "/b.pub"]\n"*" = "/c.pem"\n'
    loaded = config.load(Signed, "agent", file=write(tmp_path, text), environ={})
    assert loaded.settings.require_signature == "acme=/a.pub,acme=/b.pub,*=/c.pem"
    with pytest.raises(UsageError, match="require_signature"):
        config.load(
            Signed, "agent", file=write(tmp_path, "[agent]\nrequire_signature = 3\n"), environ={}
        )
