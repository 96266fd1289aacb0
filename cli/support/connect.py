"""The agent that a client command talks to."""

import os
from pathlib import Path

from p2pcache.agent.settings import DEFAULT_CLIENT_SOCKET, DEFAULT_SOCKET
from p2pcache.cli.support.client_options import Loaded
from p2pcache.cli.support.output import clean, note
from p2pcache.errors import Unreachable, UsageError
from p2pcache.io.http.client import AgentClient, read_token

DEFAULT_SOCKETS = (DEFAULT_SOCKET, DEFAULT_CLIENT_SOCKET)
# One of these on the command line asks for a command without a daemon.
STANDALONE_FLAGS = ("origin", "cache_dir", "tracker")


def find_agent(loaded: Loaded) -> AgentClient | None:
    """Return the agent that the settings name, or else the local one.

    None: no agent runs here, or a flag asks for a command without a daemon.

    Raises:
        UsageError: --agent beside such a flag, or a bad address.
    """
    settings, sources, _ = loaded
    standalone = [
        f"--{name.replace('_', '-')}" for name in STANDALONE_FLAGS if sources[name] == "flag"
    ]
    if standalone and sources["agent"] == "flag":
        raise UsageError(
            f"{standalone[0]} works without a daemon, --agent names one; give one of the two"
        )
    address = "" if standalone else settings.agent or local_socket()
    if not address:
        return None
    return AgentClient(address, token=read_token(settings.token_file), say=_say)


def need_agent(loaded: Loaded) -> AgentClient:
    """Return the agent, for commands that mean nothing without one.

    Raises:
        Unreachable: there is none.
        UsageError: as in `find_agent`.
    """
    client = find_agent(loaded)
    if client is None:
        raise Unreachable(
            f"no agent here: {DEFAULT_SOCKET} doesn't exist; start one with 'p2pcache agent' or name one with --agent"
        )
    return client


def _say(text: str) -> None:
    note(f"note: {clean(text)}")


def local_socket(first: str = "") -> str:
    """Return the address of a local agent's socket: the first that we may use, else the first that exists, else "".

    Args:
        first: a path to try before the default ones.
    """
    there = [path for path in (first, *DEFAULT_SOCKETS) if path and _is_socket(path)]
    usable = [path for path in there if os.access(path, os.W_OK)]
    return f"unix://{(usable or there)[0]}" if there else ""


def _is_socket(path: str) -> bool:
    try:
        return Path(path).is_socket()
    except PermissionError:  # a directory on the way is closed to us: not our agent
        return False
