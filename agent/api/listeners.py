"""The listeners of an agent: two unix sockets and, if the settings say so, TCP for the API and for doors."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from aiohttp import web

from p2pcache.agent.api.gate import ApiLimits, Gate, TokenOf
from p2pcache.agent.api.handlers import Api
from p2pcache.agent.api.rights import ListenerKind
from p2pcache.agent.api.routes import Rule
from p2pcache.agent.settings import (
    DEFAULT_CLIENT_SOCKET,
    DEFAULT_SOCKET,
    DOORS,
    AgentSettings,
)
from p2pcache.core.protocol.tokens import Rights, check_namespaces, signing_key
from p2pcache.errors import UsageError
from p2pcache.io.http import server
from p2pcache.io.security.cluster_key import KeyWatch, is_loopback, read_cluster_key

OPERATOR_MODE = (
    0o660  # members of the socket's group are operators; the folder decides who reaches it
)
CLIENT_MODE = 0o666  # every user who can see the socket may pull


class DoorHandlers(Protocol):
    """What a door answers."""

    def application(self, gate: Any) -> web.Application:
        """The door as an application, behind a gate's middleware."""


class Door(NamedTuple):
    """Another program's protocol on a port of its own."""

    setting: str  # names its address
    rule: Rule  # of every call
    handlers: DoorHandlers
    token_of: TokenOf
    everybody: Rights | None = None  # what all may without a token, wherever it listens


class Listeners:
    """The listeners of one agent, and the gate that all of them share."""

    def __init__(self, settings: AgentSettings, limits: ApiLimits | None = None) -> None:
        """Read the token key; nothing listens yet.

        Raises:
            UsageError, NotAllowed: a setting can't work (key, address, namespaces).
        """
        self.health_address = ""
        self.api_address = ""
        self.door_addresses: dict[str, str] = {}  # by setting
        self._settings = settings
        path, what = settings.token_key_file, "token key"
        if not path:
            path, what = settings.cluster_key_file, "tokens' key"
        secret = read_cluster_key(path, what)
        key = signing_key(secret) if secret.key else None
        self._trusted = key is None
        self._check_exposure()
        self._check_doors()
        namespaces = tuple(settings.client_namespaces.replace(",", " ").split())
        check_namespaces(namespaces)
        self.gate = Gate(key=key, client_namespaces=namespaces, limits=limits or ApiLimits())
        self.key = KeyWatch(path, secret, what, lambda: self.gate.rekey(signing_key(secret)))

    @contextlib.asynccontextmanager
    async def listening(self, api: Api, doors: Iterable[Door]) -> AsyncIterator[None]:
        """Listen for the length of the block.

        Args:
            api: the calls of this agent.
            doors: those whose setting is empty stay closed.

        Raises:
            UsageError, NotAllowed: an address or path can't be listened on.
        """
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            if settings.health_listen:
                sock = server.listen_tcp(settings.health_listen)
                self.health_address = server.bound_address(sock)
                await stack.enter_async_context(server.serving(api.health_application(), [sock]))
            if settings.api_listen:
                sock = server.listen_tcp(settings.api_listen)
                self.api_address = server.bound_address(sock)
                app = api.application("api", trusted=self._trusted)
                await stack.enter_async_context(server.serving(app, [sock]))
            for door in doors:
                if listen := getattr(settings, door.setting):
                    sock = server.listen_tcp(listen)
                    self.door_addresses[door.setting] = server.bound_address(sock)
                    kind = "door" if door.everybody else self._door_kind(listen)
                    gate = self.gate.middleware(
                        kind, rule=door.rule, token_of=door.token_of, everybody=door.everybody
                    )
                    await stack.enter_async_context(
                        server.serving(door.handlers.application(gate), [sock])
                    )
            if path := self._client_socket():
                sock = server.listen_unix(Path(path), mode=CLIENT_MODE)
                stack.callback(server.remove_unix, Path(path))
                await stack.enter_async_context(server.serving(api.application("client"), [sock]))
            path = settings.socket
            sock = server.listen_unix(Path(path), mode=OPERATOR_MODE)
            stack.callback(server.remove_unix, Path(path))
            app = api.application("operator", group=Path(path).lstat().st_gid)
            await stack.enter_async_context(server.serving(app, [sock]))
            yield

    def _client_socket(self) -> str:
        path = self._settings.client_socket
        by_default = self._settings.socket == DEFAULT_SOCKET
        if not path and by_default and Path(DEFAULT_CLIENT_SOCKET).parent.is_dir():
            return DEFAULT_CLIENT_SOCKET
        return path

    @staticmethod
    def _door_kind(listen: str) -> ListenerKind:
        """On loopback a door's clients may what those of the client socket may; elsewhere they need a token."""
        return "door" if is_loopback(server.parse_listen(listen)[0]) else "api"

    def _check_doors(self) -> None:
        for setting in DOORS:
            listen = getattr(self._settings, setting)
            if listen and self._trusted and self._door_kind(listen) == "api":
                raise UsageError(
                    f"refusing to listen on {listen} ({setting}) without a key: nobody's token could be "
                    "checked; set --token-key-file (or --cluster-key-file), or listen on loopback"
                )

    def _check_exposure(self) -> None:
        listen = self._settings.api_listen
        if not listen or not self._trusted:
            return
        host, _ = server.parse_listen(listen)
        if not (is_loopback(host) and self._settings.insecure):
            raise UsageError(
                f"refusing to listen on {listen} for the API without a key: nobody's token could be "
                "checked; set --token-key-file (or --cluster-key-file)"
            )
