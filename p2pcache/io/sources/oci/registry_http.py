"""Requests to one registry: its challenges are answered with a login, or with a token for each repository.

That is the flow of the OCI distribution specification and of docker's token servers: 401 names a realm, which gives a
token to whoever the registry's login says we are, or to anybody.
"""

import re
import threading
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from p2pcache.errors import NotAllowed, OriginUnavailable
from p2pcache.io import redaction
from p2pcache.io.origins.base import OriginSettings
from p2pcache.io.sources.guarded_connections import site_of
from p2pcache.io.sources.guarded_http import Answer, GuardedHttp, shown
from p2pcache.io.sources.oci.logins import Login, find_login

MAX_TOKEN_BYTES = 64 << 10  # a token of a large cloud has some 4 KB
DOCKER_HUB = "docker.io"
_DOCKER_HUB_HOST = "registry-1.docker.io"
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")
_REPOSITORY = re.compile(r"/v2/(.+)/(?:manifests|blobs)/[^/]+$")
_WORDS = re.compile(r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^\s,"]+))')


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""


class RegistryHttp(GuardedHttp):
    """As `GuardedHttp`, with the registry's way to let people in. Thread-safe; blocking."""

    def __init__(
        self, registry: str, *, private: bool, limits: OriginSettings | None = None
    ) -> None:
        """No request is sent yet.

        Args:
            registry: its host, with a port if it has one. One on loopback is spoken to without TLS, as all clients do.
            private: redirects and realms may lead to private addresses.
            limits: times and connections.

        Raises:
            UsageError: not a host.
        """
        self.registry = registry
        host = _DOCKER_HUB_HOST if registry == DOCKER_HUB else registry
        self.base = f"{'http' if _LOOPBACK.fullmatch(host) else 'https'}://{host}"
        super().__init__(self.base, private=private, limits=limits)
        self._secrets: dict[str, str] = {}  # by repository
        self._lock = threading.Lock()

    def ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        secret: str | None = None,
    ) -> Answer:
        """As `GuardedHttp.ask`.

        Raises:
            NotAllowed: the registry doesn't let us in.
        """
        found = _REPOSITORY.search(url)
        if found is None or secret is not None:
            return super().ask(method, url, headers, secret=secret)
        repository = found[1]
        sent = self._secrets.get(repository, "")
        answer = super().ask(method, url, headers, secret=sent)
        if answer.status == 401 and site_of(answer.url) == self.site:
            answer.raw.close()
            fresh = self._let_in(repository, sent, answer.headers.get("WWW-Authenticate", ""))
            answer = super().ask(method, url, headers, secret=fresh)
        return self.admitted(answer, lambda: self._refusal(repository))

    def _let_in(self, repository: str, refused: str, challenge: str) -> str:
        """The header `Authorization` that answers a challenge.

        Args:
            repository: that is to be read.
            refused: the header that wasn't enough.
            challenge: the registry's `WWW-Authenticate`.
        """
        with self._lock:
            known = self._secrets.get(repository, "")
            if known != refused:  # another thread was quicker
                return known
            login = find_login(self.registry, repository)
            scheme, _, rest = challenge.partition(" ")
            if scheme.lower() == "bearer":
                secret = self._token(repository, login, rest)
            elif scheme.lower() == "basic" and login is not None:
                secret = login.basic
            else:
                raise self._refusal(repository)
            self._secrets[repository] = secret
            return secret

    def _token(self, repository: str, login: Login | None, challenge: str) -> str:
        words = {name.lower(): quoted or bare for name, quoted, bare in _WORDS.findall(challenge)}
        realm = words.get("realm", "")
        site = site_of(realm)
        if site.scheme != self.site.scheme and site.scheme != "https":
            raise NotAllowed(f"{self.base} wants our login sent to {shown(realm)}, without TLS")
        query = {"scope": f"repository:{repository}:pull"}
        if "service" in words:
            query["service"] = words["service"]
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        try:
            data, _ = self.read_small(
                url, MAX_TOKEN_BYTES, secret="" if login is None else login.basic
            )
        except NotAllowed as error:
            if "answers 40" not in str(error):
                raise
            raise self._refusal(repository) from None
        try:
            given = msgspec.json.decode(data, type=_Token)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            given = _Token()
        token = given.token or given.access_token
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise OriginUnavailable(f"{shown(realm)} gives no token")
        redaction.keep(token)
        return f"Bearer {token}"

    def _refusal(self, repository: str) -> NotAllowed:
        return NotAllowed(
            f"the registry {self.registry} doesn't let us read {repository}; log in as this process's user (`podman "
            f"login {self.registry}`), or put the login into ~/.docker/config.json"
        )
