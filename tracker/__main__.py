"""`python -m p2pcache.tracker`: the tracker with settings from the environment and the config file."""

import os
import sys

from p2pcache.errors import P2PCacheError
from p2pcache.io import config
from p2pcache.tracker.main import run
from p2pcache.tracker.settings import TrackerSettings


def main() -> int:
    """Load the settings and run; an error is one line on stderr and an exit code."""
    try:
        file = config.read_file(config.find_file(None, os.environ))
        loaded = config.load(TrackerSettings, "tracker", file=file, environ=os.environ, flags={})
        return run(loaded.settings)
    except P2PCacheError as error:
        sys.stderr.write(f"p2pcache: error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
