"""What a user can set for the client commands."""

import msgspec


class ClientSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the client commands; the TOML section is `[client]`. "" means not set."""

    agent: str = ""
    """The agent to talk to: unix:///PATH or http://HOST:PORT; default: the local socket, if there is one."""
    tracker: str = ""
    """URL of the tracker, http://HOST:PORT, for a pull that runs its own agent."""
    origin: str = ""
    """URL of the storage (s3://bucket/prefix or file:///dir), for commands that work without a daemon."""
    cache_dir: str = ""
    """Cache of commands that work without a daemon; default: $XDG_CACHE_HOME/p2pcache or ~/.cache/p2pcache."""
    models_dir: str = ""
    """Where this client sees the agent's models directory (a container's mount); printed paths use it."""
    token_file: str = ""
    """File with the token that a remote agent asks for."""
    timeout_s: float = 0.0
    """Give up (exit 9) after so long; 0: never."""
    linger_s: float = 30.0
    """A pull that runs its own agent in a swarm stays for so long at most to hand on what only it has."""
    compile_cache_namespaces: str = ""
    """Namespaces whose compile caches, which are programs, may be restored here, separated by commas; default: none."""
