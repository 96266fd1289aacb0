"""`doctor`: examine this node; say what is wrong and what to do."""

import os
from collections.abc import Sequence

import click
import msgspec

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support.background import patience_said
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.cli.support.connect import local_socket
from p2pcache.cli.support.doctor_facts import Node, examine, settings_of_agent, trouble
from p2pcache.cli.support.options import DIR, FILE, Command, config_option, json_option
from p2pcache.cli.support.output import clean, emit, emit_document
from p2pcache.core.host import diagnosis
from p2pcache.core.host.diagnosis import Finding
from p2pcache.errors import P2PCacheError
from p2pcache.io import config as settings_files


@click.command(cls=Command)
@json_option
@click.option("--tracker", metavar="URL", help="Instead of the settings' tracker.")
@click.option("--origin", metavar="URL", help="Instead of the settings' or the tracker's origin.")
@click.option(
    "--cache-dir", metavar="DIR", type=DIR, help="Instead of the settings' cache directory."
)
@click.option(
    "--cluster-key-file", metavar="FILE", type=FILE, help="Instead of the settings' cluster key."
)
@click.option("--agent", metavar="ADDRESS", help="unix:///PATH or http://HOST:PORT of the agent.")
@config_option
def doctor(as_json: bool, agent: str | None, config: str | None, **flags: str | None) -> int:
    """Examine this node, with or without a running agent.

    Beside a running agent it examines what that one was started with; flags go first.

    Looks at settings, key, certificate, cache directory, space, open-file limit, network, kernel,
    clock, tracker (does it take our key?), origin (are the credentials good?), agent and disk.
    Each line says ok, warn or fail, what was measured, and below it what to do. Takes a few
    seconds and writes 128 MiB to the cache's disk, in a file that is gone at once. Causes stand
    above their effects: the exit code is that of the first line that fails; warnings alone are 0.

    Examples:
      p2pcache doctor
      p2pcache doctor --tracker http://tracker:7400 --origin s3://models
      p2pcache doctor --json | jq '.findings[] | select(.level != "ok")'
    """
    try:
        node = _node(agent, config, flags)
        with patience_said("examining this node", str, quiet=False):
            findings = examine(node)
    except P2PCacheError as error:
        findings = [diagnosis.failed("settings", trouble(error))]
    code = diagnosis.worst(findings)
    if as_json:
        emit_document({"code": code, "findings": [f._asdict() for f in findings]})
    else:
        _print(findings)
    return code


def _node(agent: str | None, config: str | None, flags: dict[str, str | None]) -> Node:
    """Return the node to examine: by what its agent was started with, or by the settings that it would start with."""
    file = settings_files.read_file(settings_files.find_file(config, os.environ))
    settings = settings_files.load(AgentSettings, "agent", file=file, flags=flags).settings
    client = settings_files.load(ClientSettings, "client", file=file, flags={"agent": agent})
    named = client.settings.agent
    address = named or local_socket(settings.socket) or f"unix://{settings.socket}"
    running = settings_of_agent(address, client.settings.token_file)
    given = {name for name, value in flags.items() if value is not None}
    settings = msgspec.structs.replace(
        settings, **{name: value for name, value in running.items() if name not in given}
    )
    return Node(settings, address, bool(named), client.settings.token_file)


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        emit(f"{finding.level:4}  {finding.check:11}  {clean(finding.measured)}")
        if finding.advice:
            emit(f"{'':19}-> {clean(finding.advice)}")
    count = {level: sum(f.level == level for f in findings) for level in ("fail", "warn")}
    emit(f"{count['fail']} failed, {count['warn']} to look at, of {len(findings)}")
