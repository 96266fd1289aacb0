"""`tracker`: run the cluster's tracker in the foreground."""

from typing import Any

import click

from p2pcache.cli.support.options import Command, config_option
from p2pcache.cli.support.setting_options import read_settings, setting_options
from p2pcache.tracker.settings import TrackerSettings


@click.command(cls=Command)
@setting_options(TrackerSettings)
@config_option
def tracker(config: str | None, **flags: Any) -> int:
    """Run the cluster's tracker in the foreground.

    The tracker knows the members, resolves refs, and grants each chunk's read from the origin
    to one node. Its knowledge is rebuilt within seconds of a restart.

    Examples:
      p2pcache tracker --origin s3://models
      p2pcache tracker --listen 0.0.0.0:7400 --origin file:///mnt/models --cluster-key-file KEY
    """
    settings = read_settings(TrackerSettings, "tracker", config, flags)
    from p2pcache.tracker.main import run  # the daemon's world: no other command pays for it

    return run(settings)
