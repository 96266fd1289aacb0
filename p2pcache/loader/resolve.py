"""What a caller names, a directory or a ref, becomes a source."""

import os
from pathlib import Path
from typing import Literal

from p2pcache.errors import NotFound
from p2pcache.ids import Ref
from p2pcache.io.client import AgentClient
from p2pcache.loader.source import DirectorySource, Source

DEFAULT_AGENT = "unix:///run/p2pcache/agent.sock"
Fetch = Literal["all", "needed"]


def open_source(ref_or_dir: str | os.PathLike[str], *, agent: str | None, fetch: Fetch) -> Source:
    """A directory or a .safetensors file that exists, else a ref through the agent.

    Args:
        ref_or_dir: what the caller named.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        fetch: "all": the whole model comes to this node; "needed": only what this load reads.

    Raises:
        UsageError: neither a path nor a ref.
        NotFound, Unreachable, ...: the pull's own errors.
    """
    path = Path(ref_or_dir)
    if path.exists():
        return DirectorySource(path)
    text = os.fspath(ref_or_dir)
    if text.startswith((".", "/", "~")) or isinstance(ref_or_dir, os.PathLike):
        raise NotFound(f"{text}: no such directory or file")
    ref = Ref.parse(text)
    address = agent or os.environ.get("P2PCACHE_AGENT") or DEFAULT_AGENT
    for event in AgentClient(address).pull(str(ref)):
        if event["event"] == "done":
            return DirectorySource(Path(event["path"]))
    raise NotFound(f"{ref}: the agent at {address} gave no directory")
