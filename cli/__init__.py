"""The command line."""

import p2pcache.cli.pid_one  # noqa: F401 - before anything that takes time
