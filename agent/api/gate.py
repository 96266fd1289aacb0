"""The gate before every handler: it finds the caller, checks its rights, and limits rates and calls at once."""

import asyncio
import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from p2pcache.agent.api.rights import Caller, Denied, ListenerKind
from p2pcache.agent.api.routes import BY_CALL, UNLISTED, Rule, Slots
from p2pcache.core.protocol import tokens
from p2pcache.core.protocol.handshake import Secret
from p2pcache.core.protocol.tokens import EVERY, Rights, Scope
from p2pcache.core.ratelimit import Rate, RateLimit
from p2pcache.errors import Busy, NotAllowed, Unreachable
from p2pcache.io.host.processes import Process, owner_fields, peer_of
from p2pcache.io.http import audit_log
from p2pcache.io.http.connection_limits import admit
from p2pcache.io.http.endpoint import HOST_HEADER
from p2pcache.io.tasks import asking

CALLER = web.RequestKey("caller", Caller)
OPERATOR = Rights(Scope.ADMIN, (EVERY,))
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")  # of a pod it is the pod's name
RETRY_SLOT_S = 5.0  # told to a client when all places are taken

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TokenOf = Callable[[web.Request], str]
"""Finds the token in a request; "": it has none."""


def bearer_token(request: web.Request) -> str:
    """The token of an `Authorization` header.

    Raises:
        Denied: it is of another kind.
    """
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme and scheme.lower() != "bearer":
        raise Denied("only tokens are understood here: Authorization: Bearer TOKEN")
    return text.strip() or scheme  # a scheme alone is a bad token


def _slots() -> dict[Slots, tuple[int, int]]:
    return {
        "pull": (512, 1024),  # a waiting client costs a descriptor and four lines a second
        "offer": (4, 64),  # a body that drips holds a place; `BodyMemory` bounds the memory
        "blob": (16, 64),  # our own push sends 4 at a time
        "work": (8, 32),  # each reads or writes a whole model
    }


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Limits of rates and of calls at once. Each pair is (for one client, for all clients)."""

    cheap: tuple[Rate, Rate] = (Rate(500, 2000), Rate(2000, 8000))  # each takes little CPU time
    dear: tuple[Rate, Rate] = (Rate(50, 400), Rate(200, 1600))  # each asks disk, tracker or storage
    refusals: tuple[Rate, Rate] = (Rate(1, 20), Rate(10, 100))  # audit lines about strangers
    slots: dict[Slots, tuple[int, int]] = field(default_factory=_slots)


def _process(request: web.Request, peer: Process) -> str:
    """A client's process for the audit log, with its pod, container or service.

    The kernel gives no pid of a process in another namespace of processes. Then its pod is only what it says itself.
    """
    said = request.headers.get(HOST_HEADER, "")
    says = f" says={said}" if _HOST.fullmatch(said) else ""
    if not peer.pid:
        return f"uid={peer.uid} pid=hidden{says}"
    owner = "".join(f" {key}={value}" for key, value in owner_fields(peer.pid).items())
    return f"uid={peer.uid} pid={peer.pid}{owner}{says}"


class Gate:
    """Applies the table of routes to every request of every listener.

    Invariant: `_running` counts, by (slots, client) and by (slots, ""), the calls inside
    `_place`, and holds no zeros.
    """

    def __init__(
        self, *, key: Secret | None, client_namespaces: tuple[str, ...], limits: ApiLimits
    ) -> None:
        """A gate that nobody has called yet.

        Args:
            key: the tokens' `signing_key`; None: every token is refused.
            client_namespaces: namespaces that the client socket may pull from without a token.
            limits: of rates and of calls at once.
        """
        self.stopping = asyncio.Event()
        self.calls = 0  # that are being answered now
        self._key = key
        self._clients = Rights(Scope.PULL, client_namespaces)
        self._limits = limits
        self._cheap = RateLimit(*limits.cheap)
        self._dear = RateLimit(*limits.dear)
        self._refusals = RateLimit(*limits.refusals)
        self._unsaid = 0  # refusals without an audit line of their own since the last line
        self._running: Counter[tuple[str, str]] = Counter()

    def rekey(self, key: Secret) -> None:
        """Tokens are signed with another `signing_key` from now on."""
        self._key = key

    def middleware(
        self,
        listener: ListenerKind,
        *,
        group: int | None = None,
        trusted: bool = False,
        rule: Rule | None = None,
        token_of: TokenOf = bearer_token,
        everybody: Rights | None = None,
    ) -> Any:
        """The gate of one listener.

        Args:
            listener: its kind.
            group: id of the group whose members are operators, on the operators' socket.
            trusted: every client of it is an operator (loopback and `--insecure`).
            rule: of every call of it; None: the table of routes has them.
            token_of: finds the token in a request.
            everybody: what every client of a door may; None: what clients of the client socket may.
        """

        @web.middleware
        async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else request.path
            call = f"{request.method} {path}"
            caller = self._visitor(request, listener, group, everybody, trusted=trusted)
            try:
                caller = self._with_token(token_of(request), caller)
                request[CALLER] = caller
                asking.set(caller.client)
                if resource is None:  # no such path: aiohttp answers 404
                    await self._admit(caller, UNLISTED)
                    return await handler(request)
                return await self._call(request, handler, caller, call, rule)
            except Denied as error:
                self._audit_refusal(caller, call, error)
                raise

        return gate

    async def _call(
        self, request: web.Request, handler: Handler, caller: Caller, call: str, rule: Rule | None
    ) -> web.StreamResponse:
        if rule is None:
            method, _, path = call.partition(" ")
            route = BY_CALL.get(("GET" if method == "HEAD" else method, path))
            rule = UNLISTED if route is None else route.rule
        await self._admit(caller, rule)
        if rule.scope is not None:
            caller.need(rule.scope, EVERY if rule.where == "node" else "", call)
        if self.stopping.is_set() and request.method != "GET":
            raise Unreachable("the agent is stopping; try again when it is back")
        self.calls += 1
        try:
            async with self._place(caller, rule):
                return await handler(request)
        finally:
            self.calls -= 1

    # -- the caller --------------------------------------------------------------------------------

    def _visitor(
        self,
        request: web.Request,
        listener: ListenerKind,
        group: int | None,
        everybody: Rights | None,
        *,
        trusted: bool,
    ) -> Caller:
        """The caller as the connection shows it, before any token."""
        if listener in ("api", "health", "door"):
            address = f"ip={request.remote}"
            of_all = (everybody or self._clients) if listener == "door" else None
            return Caller(address, address, OPERATOR if trusted else of_all, listener)
        peer = peer_of(request.transport)
        rights: Rights | None = self._clients
        if listener == "operator":
            ours = peer.uid in (0, os.geteuid()) or (group is not None and group in peer.groups)
            rights = OPERATOR if ours else None
        return Caller(_process(request, peer), f"uid={peer.uid}", rights, listener)

    def _with_token(self, text: str, caller: Caller) -> Caller:
        """The caller with the rights of its token. They replace those of the connection, even wider ones.

        On the client socket and at doors the token decides about namespaces only: its scope is pull in any case.

        Raises:
            Denied: the token isn't good, or this agent takes none.
        """
        if not text:
            return caller
        if self._key is None:
            raise Denied(
                "this agent takes no tokens: it has neither --token-key-file nor --cluster-key-file; "
                "leave --token-file out"
            )
        try:
            token = tokens.verify(self._key, text, time.time())
        except NotAllowed as error:
            raise Denied(str(error)) from None
        rights = token.rights
        if caller.listener in ("client", "door"):
            rights = Rights(Scope.PULL, rights.namespaces)
        # A token's default name is that of its maker, so the name alone doesn't tell clients apart.
        client = f"token={token.name} id={token.id}"
        return Caller(f"{client} {caller.who}", client, rights, caller.listener)

    def _audit_refusal(self, caller: Caller, call: str, error: Denied) -> None:
        if self._refusals.take(caller.client, time.monotonic(), patience_s=0) > 0:
            self._unsaid += 1
            return
        more = {"unsaid": self._unsaid} if self._unsaid else {}
        audit_log.write(caller.who, "call", call=call, result="refused", why=str(error), **more)
        self._unsaid = 0

    # -- limits ------------------------------------------------------------------------------------

    async def _admit(self, caller: Caller, rule: Rule) -> None:
        await admit(self._cheap if rule.cheap else self._dear, caller.client)

    @contextlib.asynccontextmanager
    async def _place(self, caller: Caller, rule: Rule) -> AsyncIterator[None]:
        if not rule.slots:
            yield
            return
        mine, all_of_them = (rule.slots, caller.client), (rule.slots, "")
        each, everyone = self._limits.slots[rule.slots]
        yours = self._running[mine] >= each
        if yours or self._running[all_of_them] >= everyone:
            count = f"{each} such calls of {caller.client}" if yours else f"{everyone} such calls"
            raise Busy(
                f"{count} run already; try again in a moment",
                retry_after_s=RETRY_SLOT_S, yours=yours,
            )  # fmt: skip
        self._running.update((mine, all_of_them))
        try:
            yield
        finally:
            for place in (mine, all_of_them):
                self._running[place] -= 1
                if not self._running[place]:
                    del self._running[place]
