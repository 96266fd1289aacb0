"""`agent`: run this node's agent in the foreground."""

import os
from typing import Any

import click

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support.options import Command, config_option
from p2pcache.cli.support.setting_options import read_settings, setting_options
from p2pcache.io.config import find_file, read_file
from p2pcache.io.sources.settings import read_sources


@click.command(cls=Command)
@setting_options(AgentSettings)
@config_option
def agent(config: str | None, **flags: Any) -> int:
    """Run this node's agent in the foreground.

    The agent fetches models for local clients, serves chunks to its peers and keeps the cache.
    SIGTERM ends it in order: uploads finish, records become durable, it leaves the swarm.
    Storage credentials come from the storage's own environment (AWS_*, profiles, roles).

    Examples:
      p2pcache agent --origin s3://models --cache-dir /var/lib/p2pcache
      p2pcache agent --tracker http://tracker:7400 --listen 0.0.0.0:7401 --cluster-key-file KEY
    """
    settings = read_settings(AgentSettings, "agent", config, flags)
    sources = read_sources(read_file(find_file(config, os.environ)), os.environ)
    from p2pcache.agent.main import run  # the daemon's world: no other command pays for it

    return run(settings, sources)
