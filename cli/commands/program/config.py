"""`config`: show or check the settings."""

import os
from typing import Any

import click
import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.rows.tables import table
from p2pcache.cli.standalone.setting_forms import check_forms
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.cli.support.options import Command, config_option, json_option
from p2pcache.cli.support.output import clean, emit, emit_document, note
from p2pcache.errors import UsageError
from p2pcache.io import config as settings_files
from p2pcache.io.sources import is_kind, unknown_kind
from p2pcache.io.sources.settings import VARIABLE, read_sources
from p2pcache.tracker.settings import TrackerSettings

SECTIONS: dict[str, type[msgspec.Struct]] = {
    "client": ClientSettings,
    "agent": AgentSettings,
    "tracker": TrackerSettings,
}
# Variables that no settings class reads, and `config check` knows all the same.
OTHER_VARIABLES = {"P2PCACHE_CONFIG", "P2PCACHE_DEBUG", VARIABLE}
OTHER_PREFIXES = ("P2PCACHE_S3_",)


@click.group()
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or check the settings.

    Flags beat the environment (P2PCACHE_*), which beats the file (--config, P2PCACHE_CONFIG or
    /etc/p2pcache/config.toml), which beats the defaults.
    """
    # --config in front of all commands holds for these commands, too.
    given = dict(ctx.default_map or {})
    ctx.default_map = dict.fromkeys(("show", "check"), given)


@config.command(cls=Command)
@click.argument("section", type=click.Choice(tuple(SECTIONS)), required=False)
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
    shown = {name: _values(name, file) for name in SECTIONS if section in (None, name)}
    if as_json:
        emit_document(shown)
        return
    for name, values in shown.items():
        emit(f"[{name}]")
        table(
            ("SETTING", "VALUE", "FROM"),
            [(key, _text(entry["value"]), entry["source"]) for key, entry in values.items()],
            cut=("VALUE", "FROM"),
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
    from p2pcache.agent.jobs.room import check_marks

    path = settings_files.find_file(config, os.environ)
    file = settings_files.read_file(path)
    settings_files.check_sections(file, SECTIONS)
    for name, source in read_sources(file, os.environ).items():
        if not is_kind(source.url.partition("://")[0]):
            # An agent starts all the same, and opens a source when it is first asked for.
            where = "" if name in file.sections.get("sources", {}) else f"environment {VARIABLE}: "
            note(f"note: {where}[sources.{name}] url: {unknown_kind(source.url)}")
    for name, kind in SECTIONS.items():
        loaded = settings_files.load(kind, name, file=file)
        check_forms(name, loaded)
        if isinstance(loaded.settings, AgentSettings):
            try:
                check_marks(loaded.settings)
            except UsageError as error:
                places = {loaded.sources[mark] for mark in ("cache_low", "cache_high")}
                where = ", ".join(sorted(places - {"default"}))
                raise UsageError(f"{where}: [agent] {error}") from None
    for variable in settings_files.unknown_variables(os.environ, SECTIONS):
        if variable not in OTHER_VARIABLES and not variable.startswith(OTHER_PREFIXES):
            note(f"note: no setting reads the variable {clean(variable)}")
    emit(f"{path or 'no file'}: ok")


def _values(name: str, file: settings_files.ConfigFile) -> dict[str, dict[str, Any]]:
    """Return value and source of each setting of a section."""
    settings, sources = settings_files.load(SECTIONS[name], name, file=file)
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
