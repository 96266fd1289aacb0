"""`config show` and `config check`."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.cli.support.options import Command, config_option, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note, table
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io import config as settings_files
from p2pcache.io.http import server
from p2pcache.io.http.client import AgentClient
from p2pcache.tracker.settings import TrackerSettings

ROOMS: dict[str, type[msgspec.Struct]] = {
    "client": ClientSettings,
    "agent": AgentSettings,
    "tracker": TrackerSettings,
}
# Variables that others than the three rooms read, so `config check` doesn't call them unknown.
OTHER_VARIABLES = {"P2PCACHE_CONFIG", "P2PCACHE_DEBUG"}
OTHER_PREFIXES = ("P2PCACHE_S3_",)


@click.group()
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or check the settings.

    Flags beat the environment (P2PCACHE_*), which beats the file (--config, P2PCACHE_CONFIG or
    /etc/p2pcache/config.toml), which beats the defaults.
    """
    # What was said in front of all commands (--config) is for those below, too.
    given = dict(ctx.default_map or {})
    ctx.default_map = dict.fromkeys(("show", "check"), given)


@config.command(cls=Command)
@click.argument("section", type=click.Choice(tuple(ROOMS)), required=False)
@json_option
@config_option
def show(section: str | None, as_json: bool, config: str | None) -> None:
    """Print each setting with its value and where it came from.

    Secrets are never shown: settings hold only the paths of their files.

    Examples:
      p2pcache config show
      p2pcache config show agent --json | jq -r .agent.cache_dir.value
    """
    file = settings_files.read_file(settings_files.find_file(config, os.environ))
    shown = {name: _values(name, file) for name in ROOMS if section in (None, name)}
    if as_json:
        emit_document(shown)
        return
    for name, values in shown.items():
        emit(f"[{name}]")
        table(
            ("SETTING", "VALUE", "FROM"),
            [(key, _text(entry["value"]), entry["source"]) for key, entry in values.items()],
        )
        emit("")


@config.command(cls=Command)
@config_option
def check(config: str | None) -> None:
    """Check the settings file and the environment; exit 2 says what is wrong.

    Examples:
      p2pcache config check
      p2pcache config check --config ./new.toml && systemctl restart p2pcache-agent
    """
    path = settings_files.find_file(config, os.environ)
    file = settings_files.read_file(path)
    settings_files.check_sections(file, ROOMS)
    for name in ROOMS:
        _plausible(name, file)
    for variable in settings_files.unknown_variables(os.environ, ROOMS):
        if variable not in OTHER_VARIABLES and not variable.startswith(OTHER_PREFIXES):
            note(f"note: no setting reads the variable {clean(variable)}")
    emit(f"{path or 'no file'}: ok")


def _plausible(room: str, file: settings_files.ConfigFile) -> None:
    """What a daemon would refuse at its start, without asking anybody: addresses, URLs, shares.

    Raises:
        UsageError: with the place of the setting.
    """
    settings, sources = settings_files.load(ROOMS[room], room, file=file)
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        if field not in _FORMS or value in ("", None):
            continue
        try:
            _FORMS[field](value)
        except UsageError as error:
            says = str(error).removeprefix(f"{field} ")
            raise UsageError(f"{sources[field]}: [{room}] {field}: {says}") from None
        except P2PCacheError:
            continue  # a mount or a profile that this machine may lack: not a matter of form


def _tracker_url(value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"not a tracker's URL: {value!r}; expected http://HOST:PORT")


def _origin_url(value: str) -> None:
    from p2pcache.io.origins import open_origin

    open_origin(value).close()


def _governor_floor(value: float) -> None:
    from p2pcache.agent.node.governor_loop import check_floor

    check_floor(value)


def _engine_metrics(value: str) -> None:
    from p2pcache.io.host.engine_latency import EngineMetrics

    EngineMetrics(value, metric="", latency_s=1.0)


def _advertise(value: str) -> None:
    from p2pcache.agent.node.location import advertised

    advertised(value)


def _label(setting: str, value: str) -> None:
    from p2pcache.agent.node.location import check_label

    check_label(setting, value)


_FORMS: dict[str, Callable[[Any], object]] = {
    "listen": server.parse_listen, "advertise": _advertise, "api_listen": server.parse_listen,
    "health_listen": server.parse_listen, "tracker": _tracker_url, "origin": _origin_url,
    **{setting: partial(_label, setting) for setting in ("rack", "site", "node_name")},
    "agent": AgentClient, "governor_floor": _governor_floor, "engine_metrics": _engine_metrics,
}  # fmt: skip


def _values(name: str, file: settings_files.ConfigFile) -> dict[str, dict[str, Any]]:
    settings, sources = settings_files.load(ROOMS[name], name, file=file)
    return {
        field: {"value": _shown(getattr(settings, field)), "source": sources[field]}
        for field in settings.__struct_fields__
    }


def _shown(value: object) -> object:
    return settings_files.redacted(value) if isinstance(value, str) else value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "-"
