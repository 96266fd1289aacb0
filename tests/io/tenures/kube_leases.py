"""A small HTTPS stand-in for the API server: Leases of one namespace, with its rules for resourceVersion."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from p2pcache.io.host.kube_api import KubeApi
from p2pcache.io.http import server
from p2pcache.io.security import ca

API, SPACE, TOKEN = "coordination.k8s.io/v1", "models", "first"


class Leases:
    """The objects, by name. `failure`: what every call is answered instead."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.failure: tuple[int, str] | None = None
        self.folder = folder
        self.url = ""
        self._version = 41

    def api(self, *, call_s: float = 30.0) -> KubeApi:
        return KubeApi(self.url, self.folder, call_s=call_s)

    async def answer(self, request: web.Request) -> web.Response:
        self.calls.append(request.method)
        if self.failure is not None:
            return web.Response(status=self.failure[0], text=self.failure[1])
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized")
        if request.match_info["space"] != SPACE:
            return status(403, "leases is forbidden in this namespace")
        name = request.match_info.get("name", "")
        if request.method == "POST":
            return self._create(json.loads(await request.read()))
        if name not in self.objects:
            return status(404, f'leases "{name}" not found')
        if request.method == "PUT":
            return self._update(name, json.loads(await request.read()))
        return web.json_response(self.objects[name])

    def _create(self, lease: dict[str, Any]) -> web.Response:
        check(lease)
        name = lease["metadata"]["name"]
        assert "resourceVersion" not in lease["metadata"], "resourceVersion should not be set"
        if name in self.objects:
            return status(409, f'leases "{name}" already exists')
        return self._store(name, lease, 201)

    def _update(self, name: str, lease: dict[str, Any]) -> web.Response:
        check(lease)
        stored = self.objects[name]["metadata"]["resourceVersion"]
        if lease["metadata"].get("resourceVersion") != stored:
            return status(409, "the object has been modified; please apply your changes")
        if lease["metadata"].get("uid", "u") != "u":
            return status(409, "the UID in the precondition isn't that of the object")
        return self._store(name, lease, 200)

    def _store(self, name: str, lease: dict[str, Any], code: int) -> web.Response:
        self._version += 1
        lease["metadata"] |= {"resourceVersion": str(self._version), "namespace": SPACE, "uid": "u"}
        self.objects[name] = lease
        return web.json_response(lease, status=code)


def check(lease: dict[str, Any]) -> None:
    """The server's validation, as far as it concerns us."""
    assert (lease["apiVersion"], lease["kind"]) == (API, "Lease")
    spec = lease["spec"]
    assert isinstance(spec["leaseDurationSeconds"], int)
    assert spec["leaseDurationSeconds"] > 0
    assert isinstance(spec["leaseTransitions"], int)
    assert spec["leaseTransitions"] >= 0
    for name in ("renewTime", "acquireTime"):
        day, _, hour = spec[name].partition("T")
        assert (len(day), len(hour), hour[-1]) == (10, 16, "Z"), "a MicroTime"
    for value in lease["metadata"]["annotations"].values():
        assert isinstance(value, str)


def status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": code}, status=code)


def account(folder: Path) -> Path:
    """A service account's directory, and the server's certificate beside it."""
    ca.init(folder, cluster="kube")
    ca.issue(folder, "api", role="tracker", hosts=["127.0.0.1"])
    (folder / "ca.crt").write_bytes((folder / "ca.pem").read_bytes())
    (folder / "token").write_text(TOKEN)
    (folder / "namespace").write_text(SPACE)
    return folder


@contextlib.asynccontextmanager
async def leases(folder: Path) -> AsyncIterator[Leases]:
    """A running server."""
    fake = Leases(folder)
    app = web.Application()
    base = f"/apis/{API}/namespaces/{{space}}/leases"
    app.add_routes([web.post(base, fake.answer), web.route("*", base + "/{name}", fake.answer)])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "api.pem", folder / "api.key")
    runner = web.AppRunner(app)
    await runner.setup()
    sock = server.listen_tcp("127.0.0.1:0")
    await web.SockSite(runner, sock, ssl_context=context).start()
    fake.url = f"https://{server.bound_address(sock)}"
    try:
        yield fake
    finally:
        await runner.cleanup()
