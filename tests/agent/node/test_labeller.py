"""The node labeller against a real HTTPS server that keeps one Node as the Kubernetes API does."""

import json
import random
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web as http

from p2pcache.agent.node import location
from p2pcache.agent.node.labeller import Labeller
from p2pcache.agent.settings import AgentSettings
from p2pcache.core.host.kubernetes_labels import PREFIX
from p2pcache.errors import NotAllowed, NotFound, Unreachable, UsageError
from p2pcache.io.host.kube import NodeLabels, in_cluster
from p2pcache.io.host.kube_api import server_url
from p2pcache.io.http import server
from p2pcache.io.security import ca
from tests.agent.kit import agent, client, make_model, pull, push

FILES = {"weights.bin": random.Random(9).randbytes(500_000)}
OURS = PREFIX + "team__m__v1"
OTHERS = {"kubernetes.io/hostname": "node-1", "topology.kubernetes.io/zone": "b"}


class Api:
    """One Node behind GET and PATCH, with the token check and answers of the real API server."""

    def __init__(self) -> None:
        self.labels = dict(OTHERS)
        self.token = "first"
        self.calls: list[str] = []
        self.failure: tuple[int, str] | None = None
        self.url = ""

    async def node(self, request: http.Request) -> http.Response:
        self.calls.append(request.method)
        if self.failure is not None:
            return http.Response(status=self.failure[0], text=self.failure[1])
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return http.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        if request.match_info["name"] != "node-1":
            return http.json_response({"kind": "Status", "message": "nodes not found"}, status=404)
        if request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            body = json.loads(await request.read())
            assert body.keys() == {"metadata"}
            assert body["metadata"].keys() == {"labels"}
            for key, value in body["metadata"]["labels"].items():
                if value is None:
                    self.labels.pop(key, None)
                else:
                    self.labels[key] = value
        metadata = {"name": "node-1", "labels": self.labels, "resourceVersion": "7"}
        return http.json_response({"kind": "Node", "metadata": metadata, "status": {}})


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kube-ca")
    ca.init(folder, cluster="kube")
    ca.issue(folder, "api", role="tracker", hosts=["127.0.0.1"])
    return folder


@pytest.fixture
async def api(authority: Path) -> AsyncIterator[Api]:
    fake = Api()
    app = http.Application()
    app.add_routes([http.route("*", "/api/v1/nodes/{name}", fake.node)])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority / "api.pem", authority / "api.key")
    runner = http.AppRunner(app)
    await runner.setup()
    sock = server.listen_tcp("127.0.0.1:0")
    await http.SockSite(runner, sock, ssl_context=context).start()
    fake.url = f"https://{server.bound_address(sock)}"
    yield fake
    await runner.cleanup()


@pytest.fixture
def account(tmp_path: Path, authority: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "ca.crt").write_bytes((authority / "ca.pem").read_bytes())
    (folder / "token").write_text("first\n")
    return folder


async def test_labels_follow_the_cache(tmp_path: Path, api: Api, account: Path) -> None:
    origin = tmp_path / "origin"
    layout = push(origin, make_model(tmp_path / "model", FILES), "team/m:v1")
    api.labels[PREFIX + "library__gone__v9"] = "0" * 16  # of a model that was removed meanwhile
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        labeller = Labeller(app.context, NodeLabels("node-1", api.url, account))
        await labeller.sync_labels()
        assert api.labels == OTHERS
        await pull(app, "team/m:v1")
        await labeller.sync_labels()
        assert api.labels == {**OTHERS, OURS: layout.digest[:16]}
        asked = len(api.calls)
        await labeller.sync_labels()
        assert len(api.calls) == asked, "nothing changed: the API server needn't hear of it"
        async with client(app) as session, session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 200
        await labeller.sync_labels()
        assert api.labels == OTHERS


async def test_the_token_is_read_at_each_call(api: Api, account: Path) -> None:
    labels = NodeLabels("node-1", api.url, account)
    assert await labels.fetch_labels() == OTHERS
    api.token = "second"
    with pytest.raises(NotAllowed, match="component node-labels"):
        await labels.fetch_labels()
    (account / "token").write_text("second")
    assert await labels.fetch_labels() == OTHERS


async def test_errors_of_the_api_server_become_ours(api: Api, account: Path) -> None:
    labels = NodeLabels("node-1", api.url, account)
    with pytest.raises(NotFound, match="--node-name"):
        await NodeLabels("../node-1", api.url, account).fetch_labels()
    for status, text in ((500, "{}"), (429, "slow down"), (200, "<html>"), (200, "x" * (5 << 20))):
        api.failure = (status, text)
        with pytest.raises(Unreachable):
            await labels.fetch_labels()
    api.failure = (200, '{"metadata": {"labels": {"a": 1}}}')
    with pytest.raises(Unreachable):
        await labels.fetch_labels()


async def test_an_unreachable_api_server_is_named_in_the_message(account: Path) -> None:
    with pytest.raises(Unreachable, match="answer: ") as caught:
        await NodeLabels("node-1", "https://127.0.0.1:1", account).fetch_labels()
    assert "ssl:" not in str(caught.value)


async def test_a_stranger_with_the_wrong_certificate_gets_no_token(
    tmp_path: Path, api: Api, account: Path
) -> None:
    ca.init(tmp_path / "other", cluster="other")
    (account / "ca.crt").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    with pytest.raises(Unreachable, match="certificate"):
        await NodeLabels("node-1", api.url, account).fetch_labels()
    assert api.calls == []
    (account / "ca.crt").unlink()
    with pytest.raises(NotAllowed, match="service account"):
        await NodeLabels("node-1", api.url, account).fetch_labels()


async def test_trouble_is_logged_once_and_ends_nothing(
    tmp_path: Path, api: Api, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.failure = (403, '{"message": "forbidden"}')
    async with agent(tmp_path) as app:
        labeller = Labeller(app.context, NodeLabels("node-1", api.url, account))
        for _ in range(3):
            await labeller.sync_labels()
        assert len(api.calls) == 1, "after a failure it waits"
        assert caplog.text.count("node labels:") == 1


def test_outside_of_a_pod_the_labeller_is_an_error() -> None:
    with pytest.raises(UsageError, match="pod only"):
        in_cluster("node-1", {})
    inside = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert server_url("a thing", inside) == "https://[fd00::1]:443"
    assert in_cluster("a b", inside)._path == "/api/v1/nodes/a%20b"


# -- rack and site -----------------------------------------------------------------------------------

ZONE = "topology.kubernetes.io/zone"
ASKING = AgentSettings(kubernetes_site_label=ZONE, kubernetes_rack_label="example.org/rack")


async def test_site_and_rack_come_from_the_nodes_labels(api: Api, account: Path) -> None:
    api.labels["example.org/rack"] = "r7"
    found = await location.located(ASKING, NodeLabels("node-1", api.url, account))
    assert (found.site, found.rack) == ("b", "r7")
    set_by_hand = msgspec.structs.replace(ASKING, site="fra1")
    found = await location.located(set_by_hand, NodeLabels("node-1", api.url, account))
    assert (found.site, found.rack) == ("fra1", "r7")


async def test_a_missing_label_is_logged(
    api: Api, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = await location.located(ASKING, NodeLabels("node-1", api.url, account))
    assert (found.site, found.rack) == ("b", "")
    assert "has no label example.org/rack" in caplog.text


async def test_without_label_settings_the_api_server_is_not_asked(api: Api, account: Path) -> None:
    plain = AgentSettings(rack="r1")
    assert await location.located(plain) is plain
    both = msgspec.structs.replace(ASKING, rack="r1", site="s1")
    assert await location.located(both, NodeLabels("node-1", api.url, account)) is both
    assert api.calls == []
    with pytest.raises(UsageError, match="pod only"):
        await location.located(ASKING)


async def test_an_api_server_that_fails_is_asked_again_and_does_not_stop_the_agent(
    api: Api, account: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(location, "TRIES_S", (0.01, 0.01))
    api.failure = (500, "{}")
    node = NodeLabels("node-1", api.url, account)
    found = await location.located(ASKING, node)
    assert (found.site, found.rack, len(api.calls)) == ("", "", 3)
    api.failure = (403, '{"message": "forbidden"}')
    assert (await location.located(ASKING, node)).site == ""
    assert len(api.calls) == 4, "it won't be allowed a moment later either"
    assert caplog.text.count("rack and site are unknown") == 2
