"""The settings of client commands, and their options."""

import os
from pathlib import Path

import pytest

from p2pcache.cli.support.client_options import ClientSettings, cache_dir
from p2pcache.errors import UsageError
from tests.cli.conftest import Run


def test_a_bad_value_names_the_flag_as_it_was_typed(run: Run) -> None:
    assert str(run("ls", "--timeout", "soon").exception).startswith("--timeout: not a duration")


@pytest.mark.parametrize(
    ("xdg", "where"),
    [
        ("/x", "/x/p2pcache"),
        ("relative", "/home/me/.cache/p2pcache"),
        ("", "/home/me/.cache/p2pcache"),
    ],
)
def test_the_cache_of_a_user(monkeypatch: pytest.MonkeyPatch, xdg: str, where: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir(ClientSettings()) == Path(where)


def test_a_blank_cache_is_none() -> None:
    with pytest.raises(UsageError, match="blank"):
        cache_dir(ClientSettings(cache_dir=" "))


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_whole_path(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(UsageError, match=f"HOME is '{home}'.*--cache-dir"):
        cache_dir(ClientSettings())


def test_a_user_without_a_home_names_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> object:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(UsageError, match=f"user {os.getuid()} has no entry .*--cache-dir"):
        cache_dir(ClientSettings())
    assert cache_dir(ClientSettings(cache_dir="/c")) == Path("/c")
