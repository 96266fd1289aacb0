"""A pull without a daemon: the command runs an agent of its own while it lasts."""

import contextlib
import ipaddress
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from p2pcache.agent.settings import AgentSettings
from p2pcache.cli.connect import Loaded, cache_dir
from p2pcache.cli.local import cache_turn
from p2pcache.cli.output import note
from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io import config, log
from p2pcache.io.client import AgentClient

# Free ports and a private socket: nothing here may get in the way of a real agent of this host.
_ALONE_LISTEN = "127.0.0.1:0"
_SWARM_LISTEN = "0.0.0.0:0"  # only with a cluster key, or where `insecure` was asked for


class EmbeddedAgent:
    """An agent inside this process, and a client of it."""

    def __init__(self, client: AgentClient, *, linger_s: float) -> None:
        self.client = client
        self._linger_s = linger_s

    def linger(self, digest: str) -> None:
        """Stay until another node has all of the model that only this one has; a favour, never an error."""
        if self._linger_s:
            with contextlib.suppress(P2PCacheError):
                self.client.linger(digest, self._linger_s)


@contextmanager
def embedded_agent(loaded: Loaded) -> Iterator[EmbeddedAgent]:
    """Run an agent for the length of the block.

    Raises:
        UsageError: neither an origin nor a tracker is set.
        P2PCacheError: the agent can't start.
    """
    log.setup("debug" if os.environ.get("P2PCACHE_DEBUG") else "error")
    with (
        tempfile.TemporaryDirectory(prefix="p2pcache-") as private,
        cache_turn(cache_dir(loaded.settings)),
    ):
        # Not inside the cache: the path of a unix socket may have 107 bytes at most.
        settings = agent_settings(loaded, Path(private) / "agent.sock", dict(os.environ))
        from p2pcache.agent.embedded import run_embedded

        with run_embedded(settings) as socket:
            linger_s = loaded.settings.linger_s if settings.tracker else 0.0
            yield EmbeddedAgent(AgentClient(f"unix://{socket}"), linger_s=linger_s)


def agent_settings(loaded: Loaded, socket: Path, environ: dict[str, str]) -> AgentSettings:
    """The settings of the embedded agent: the client's, and [agent] where the client has none.

    Raises:
        UsageError: neither an origin nor a usable tracker is set.
    """
    own = loaded.settings
    flags: dict[str, Any] = {
        "cache_dir": str(cache_dir(own)), "socket": str(socket), "client_socket": "", "advertise": "",
        "origin": own.origin or None, "tracker": own.tracker or None, "listen": _ALONE_LISTEN,
    }  # fmt: skip
    wish = config.load(
        AgentSettings, "agent", file=loaded.file, environ=environ, flags=flags
    ).settings
    if not wish.origin and not wish.tracker:
        raise UsageError(
            "no agent here, and nowhere to pull from: set P2PCACHE_ORIGIN (or --origin) to the storage, "
            "for example s3://models, or start 'p2pcache agent'"
        )
    if not wish.tracker or _is_local(wish.tracker):
        return wish
    if wish.cluster_key_file or wish.insecure:
        flags["listen"] = _SWARM_LISTEN
    elif wish.origin:
        note(
            f"note: no cluster key, so not joining {wish.tracker}: working alone, from {config.redacted(wish.origin)}"
        )
        flags["tracker"] = ""
    else:
        raise UsageError(
            f"joining the swarm of {wish.tracker} needs the cluster key: set P2PCACHE_CLUSTER_KEY_FILE, "
            "or P2PCACHE_ORIGIN to work alone"
        )
    return config.load(
        AgentSettings, "agent", file=loaded.file, environ=environ, flags=flags
    ).settings


def _is_local(url: str) -> bool:
    """Whether a URL's host is this machine: on loopback no cluster key is needed."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
