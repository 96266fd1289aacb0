"""systemd/config.toml.sample, made from the settings classes.

python -m tests.cli.sample_config > systemd/config.toml.sample
"""

import json
import sys
import textwrap

import msgspec

from p2pcache.cli.commands.program.config import SECTIONS
from p2pcache.cli.support.setting_options import default_text, field_docs

HEAD = """\
# Settings of p2pcache. Copy to /etc/p2pcache/config.toml and change what you need; each line that
# begins with "#name" shows a default. Flags and P2PCACHE_* variables beat this file.
# Afterwards: p2pcache config check && p2pcache doctor && systemctl restart p2pcache-agent
# No secrets here: keys are files of their own, storage credentials are in credentials.env.
"""
SOURCES = """\
# Each place that models are imported from has a section, and a name that is the same on all nodes.
#   [sources.hub]
#   url = "hf://"
"""
TITLES = {
    "agent": "A node in a cluster needs listen, tracker and cluster_key_file; the origin comes from the tracker.",
    "tracker": "A tracker needs listen, origin and cluster_key_file.",
    "client": "The commands find the local agent by themselves; nothing here is needed.",
}


def render() -> str:
    """The whole file."""
    return "\n".join([HEAD, *(_section(name, title) for name, title in TITLES.items()), SOURCES])


def _section(name: str, title: str) -> str:
    kind = SECTIONS[name]
    docs = field_docs(kind)
    lines = [f"# {title}", f"[{name}]"]
    for field in msgspec.structs.fields(kind):
        lines += textwrap.wrap(docs[field.name], 100, initial_indent="# ", subsequent_indent="# ")
        lines.append(f"#{field.name} = {_value(field.name, field.default)}")
    return "\n".join(lines) + "\n"


def _value(name: str, value: object) -> str:
    if isinstance(value, bool | int) and not name.endswith("_bytes"):
        return json.dumps(value)
    return json.dumps(default_text(name, value) or value)


if __name__ == "__main__":
    sys.stdout.write(render())
