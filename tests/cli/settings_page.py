"""docs/settings.md, made from the settings classes: python -m tests.cli.settings_page > docs/settings.md"""

import sys

import msgspec

from p2pcache.cli.commands.program.config import SECTIONS
from p2pcache.cli.support.setting_options import default_text, field_docs
from p2pcache.io.sources.settings import SourceSettings

TABLES: dict[str, type[msgspec.Struct]] = {
    "sources.NAME": SourceSettings
}  # sections of which there may be several

HEAD = """\
# Settings

Flags beat the environment, which beats the file, which beats the defaults. The file is TOML with
the sections `[client]`, `[agent]`, `[tracker]`, and `[sources.NAME]` for each source that models
are imported from ([import.md](import.md)): the one of `--config`, else of `P2PCACHE_CONFIG`, else
`/etc/p2pcache/config.toml` if it exists. A key that no setting has is an error. A setting
`some_name` is the flag `--some-name` and the variable `P2PCACHE_SOME_NAME` (the client's
`timeout_s` and `linger_s` are the flags `--timeout` and `--linger`). A section `[sources.NAME]` has
neither flags nor variables; `P2PCACHE_SOURCES=NAME=URL,...` names sources where there is no file.
`p2pcache config show` prints what is in force and from where, `p2pcache config check` validates.

Units are in the names. As text, `*_bytes` takes sizes (`512`, `10GiB`, `1.5GB`), `*_bytes_per_s`
rates (`100MiB/s`, `200mbit`) and `*_s` durations (`30`, `250ms`, `5m`, `7d`). Paths may begin with `~/`,
the home of the user who runs the program.

Credentials of a storage are no settings: they come from its own environment, files or instance
role (`AWS_*`, profiles). For S3, `P2PCACHE_S3_ADDRESSING` (`path`, `virtual`, `auto`) and
`P2PCACHE_S3_UNSIGNED=1` are read from the environment. Secrets are given as files, never as
values. `P2PCACHE_DEBUG=1` shows where an unexpected error came from.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(
        [HEAD, *(_section(name, kind) for name, kind in {**SECTIONS, **TABLES}.items())]
    )


def _section(name: str, kind: type[msgspec.Struct]) -> str:
    docs = field_docs(kind)
    lines = [f"## [{name}]", "", "| setting | default | meaning |", "|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        text = " ".join(docs[field.name].split()).replace("|", "\\|")
        lines.append(f"| `{field.name}` | {_default(field.name, field.default)} | {text} |")
    return "\n".join(lines) + "\n"


def _default(name: str, value: object) -> str:
    if value is False:
        return "no"
    text = default_text(name, value) or ("0" if value == 0 else "")
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    sys.stdout.write(render())
