"""Start a daemon in the foreground. The only place that imports the daemons' own code."""

import os
from typing import Any

import click

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.support.options import Command, config_option
from p2pcache.cli.support.setting_options import setting_options
from p2pcache.io import config
from p2pcache.tracker.settings import TrackerSettings


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
    settings = _settings(AgentSettings, "agent", config, flags)
    from p2pcache.agent.main import run

    return run(settings)


@click.command(cls=Command)
@setting_options(TrackerSettings)
@config_option
def tracker(config: str | None, **flags: Any) -> int:
    """Run the cluster's tracker in the foreground.

    The tracker knows the members, resolves refs, and grants each chunk's read from the origin
    to one node. What it knows is rebuilt within seconds of a restart.

    Examples:
      p2pcache tracker --origin s3://models
      p2pcache tracker --listen 0.0.0.0:7400 --origin file:///mnt/models --cluster-key-file KEY
    """
    settings = _settings(TrackerSettings, "tracker", config, flags)
    from p2pcache.tracker.main import run

    return run(settings)


def _settings(
    kind: type[config.S], section: str, path: str | None, flags: dict[str, Any]
) -> config.S:
    file = config.read_file(config.find_file(path, os.environ))
    return config.load(kind, section, file=file, environ=os.environ, flags=flags).settings
