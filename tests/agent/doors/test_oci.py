"""The OCI door: clients of a registry read models through an agent, while chunks arrive."""

import asyncio
import base64
import hashlib
import io
import json
import random
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from p2pcache.agent.app import AgentApp
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import UsageError
from tests.agent.api.rights_kit import token, write_key
from tests.agent.doors.kit import door_of, until_listed
from tests.agent.kit import HeldReads, agent, make_model, pull, push

WEIGHTS = random.Random(2).randbytes(3_000_000)
FILES = {
    "config.json": b"{}", "model.safetensors": WEIGHTS, "sub/dir/vocab \u00fc.txt": b"one\ntwo\n",
    "sub/again.txt": b"one\ntwo\n",
}  # fmt: skip


door = door_of("oci_listen")


def address(app: AgentApp) -> str:
    return app.listeners.door_addresses["oci_listen"]


def session(app: AgentApp, **headers: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"http://{address(app)}", headers=headers)


def pushed(tmp: Path, ref: str, files: dict[str, bytes] = FILES) -> None:
    push(tmp / "origin", make_model(tmp / ref.replace("/", "-"), files), ref, sha256=True)


async def manifest_of(client: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with client.get(f"/v2/{path}") as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json(content_type=None)
        return found


async def code_of(client: aiohttp.ClientSession, path: str, method: str = "GET") -> tuple[int, str]:
    """Status and the registry's word for the error."""
    async with client.request(method, path) as answer:
        assert answer.headers["Docker-Distribution-API-Version"] == "registry/2.0"
        return answer.status, (await answer.json())["errors"][0]["code"]


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_manifest_configuration_and_layers_have_their_digests(tmp_path: Path) -> None:
    pushed(tmp_path, "acme/tiny:v1")
    async with door(tmp_path) as app, session(app) as client:
        async with client.get("/v2/") as answer:
            assert (answer.status, await answer.text()) == (200, "{}")
        async with client.head("/v2/acme/tiny/manifests/v1") as answer:
            assert answer.status == 200
            named = answer.headers["Docker-Content-Digest"]
            size = int(answer.headers["Content-Length"])
        body = b""
        for reference in ("v1", named):
            async with client.get(f"/v2/acme/tiny/manifests/{reference}") as answer:
                body = await answer.read()
                assert answer.content_type == "application/vnd.oci.image.manifest.v1+json"
            assert (digest(body), len(body)) == (named, size)
        manifest = json.loads(body)
        found = {}
        for layer in [manifest["config"], *manifest["layers"]]:
            async with client.head(f"/v2/acme/tiny/blobs/{layer['digest']}") as answer:
                assert answer.headers["Docker-Content-Digest"] == layer["digest"]
                assert answer.headers["Content-Length"] == str(layer["size"])
            async with client.get(f"/v2/acme/tiny/blobs/{layer['digest']}") as answer:
                data = await answer.read()
            assert digest(data) == layer["digest"]
            found[layer.get("annotations", {}).get("org.cncf.model.filepath", "")] = data
        del found[""]
        assert found == FILES
        async with client.get(f"/v2/acme/tiny/referrers/{named}") as answer:
            assert (await answer.json(content_type=None))["manifests"] == []
            assert answer.content_type == "application/vnd.oci.image.index.v1+json"


async def test_a_digest_is_found_in_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods name images by digest, and their node may never have heard of the tag."""
    named = ""
    for number in (1, 2):
        pushed(tmp_path, f"acme/tiny:v{number}", {"config.json": b"%d" % number})
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:plain")
    async with door(tmp_path, cache_dir=str(tmp_path / "first")) as app, session(app) as client:
        async with client.head("/v2/acme/tiny/manifests/v2") as answer:
            named = answer.headers["Docker-Content-Digest"]
    async with door(tmp_path) as app, session(app) as client:
        (layer,) = (await manifest_of(client, f"acme/tiny/manifests/{named}"))["layers"]
        assert await _whole(client, f"/v2/acme/tiny/blobs/{layer['digest']}") == b"2"
        assert {str(ref) for ref in app.store.refs()} == {"acme/tiny:v2"}
        listed: list[object] = []
        monkeypatch.setattr(app.resolver, "stored_tags", listed.append)
        for number in range(3):  # storage isn't searched for each wrong digest
            url = f"/v2/acme/tiny/blobs/sha256:{number:064}"
            assert await code_of(client, url) == (404, "BLOB_UNKNOWN")
        assert not listed


async def test_ranges(tmp_path: Path) -> None:
    pushed(tmp_path, "acme/tiny:v1")
    async with door(tmp_path) as app, session(app) as client:
        await manifest_of(client, "acme/tiny/manifests/v1")
        url = f"/v2/acme/tiny/blobs/{digest(WEIGHTS)}"
        for header, expected in (("bytes=5-9", WEIGHTS[5:10]), ("bytes=2999990-", WEIGHTS[-10:])):
            async with client.get(url, headers={"Range": header}) as answer:
                assert (answer.status, await answer.read()) == (206, expected)
        async with client.get(url, headers={"Range": "bytes=3000000-"}) as answer:
            assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */3000000")


async def test_bytes_go_out_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed(tmp_path, "acme/tiny:v1")
    reads = HeldReads(monkeypatch)
    async with door(tmp_path) as app, session(app) as client:
        await manifest_of(client, "acme/tiny/manifests/v1")  # a manifest waits for no byte
        async with client.head(f"/v2/acme/tiny/blobs/{digest(WEIGHTS)}") as answer:
            assert answer.status == 200
        getting = asyncio.gather(_whole(client, f"/v2/acme/tiny/blobs/{digest(WEIGHTS)}"))
        await reads.until_begun()
        assert not getting.done()
        reads.let_go.set()
        (found,) = await getting
        assert found == WEIGHTS
        (swarm,) = app.downloads.swarms.values()
        assert swarm.bytes_done < sum(
            map(len, FILES.values())
        )  # the other layers weren't asked for


async def _whole(client: aiohttp.ClientSession, url: str) -> bytes:
    async with client.get(url) as answer:
        return await answer.read()


async def test_two_names_of_one_model(tmp_path: Path) -> None:
    """Each is read by its own name, though one download brings both."""
    for ref in ("acme/tiny:v1", "other/name:v2"):
        pushed(tmp_path, ref)
    async with door(tmp_path) as app, session(app) as client:
        manifests = [
            await manifest_of(client, path)
            for path in ("acme/tiny/manifests/v1", "other/name/manifests/v2")
        ]
        assert manifests[0] == manifests[1]
        for name in ("acme/tiny", "other/name"):
            assert await _whole(client, f"/v2/{name}/blobs/{digest(WEIGHTS)}") == WEIGHTS


async def test_lists_of_names_come_in_pages(tmp_path: Path) -> None:
    for ref in ("acme/tiny:v1", "acme/tiny:v2", "acme/tiny:v3", "library/one:latest"):
        pushed(tmp_path, ref, {"config.json": b"{}"})
    async with door(tmp_path) as app, session(app) as client:
        assert await code_of(client, "/v2/acme/none/tags/list") == (404, "NAME_UNKNOWN")
        every = {"name": "acme/tiny", "tags": ["v1", "v2", "v3"]}
        assert await manifest_of(client, "acme/tiny/tags/list") == every  # as storage has it
        assert (await manifest_of(client, "_catalog"))["repositories"] == []  # as this node has it
        for path in ("acme/tiny:v1", "acme/tiny:v2", "acme/tiny:v3", "one:latest"):
            await manifest_of(client, path.replace(":", "/manifests/"))
        assert await manifest_of(client, "acme/tiny/tags/list") == every
        tags: list[str] = []
        path = f"http://{address(app)}/v2/acme/tiny/tags/list?n=1"
        while path:
            async with client.get(path) as answer:
                tags += (await answer.json())["tags"]
                path = str(answer.links["next"]["url"]) if answer.links else ""
        assert tags == ["v1", "v2", "v3"]
        assert (await manifest_of(client, "acme/tiny/tags/list?n=0"))["tags"] == []
        assert (await manifest_of(client, "acme/tiny/tags/list?last=v2"))["tags"] == ["v3"]
        assert (await code_of(client, "/v2/acme/tiny/tags/list?n=-1"))[0] == 400
        assert (await manifest_of(client, "_catalog"))["repositories"] == [
            "acme/tiny", "library/one",
        ]  # fmt: skip


async def test_a_model_without_sha256_is_no_artifact(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/plain:v1")
    async with door(tmp_path) as app, session(app) as client:
        async with client.get("/v2/acme/plain/manifests/v1") as answer:
            (error,) = (await answer.json())["errors"]
            assert (answer.status, error["code"]) == (404, "MANIFEST_UNKNOWN")
            assert "push --sha256" in error["message"]
        url = f"/v2/acme/plain/blobs/{digest(WEIGHTS)}"
        assert await code_of(client, url) == (404, "BLOB_UNKNOWN")


async def test_one_namespace_is_closed_to_another(tmp_path: Path) -> None:
    pushed(tmp_path, "acme/tiny:v1", {"a": b"open"})
    pushed(tmp_path, "secret/tiny:v1", {"a": b"secret"})
    more = {"client_namespaces": "acme", "token_key_file": write_key(tmp_path / "token.key")}
    secret = f"blobs/{digest(b'secret')}"
    image = "/v2/image/secret/tiny/manifests/v1"
    async with door(tmp_path, **more) as app:
        assert (await pull(app, "secret/tiny:v1"))["event"] == "done"
        async with session(app) as client:
            await manifest_of(client, "acme/tiny/manifests/v1")
            for path in ("manifests/v1", secret, "tags/list", f"referrers/{digest(b'')}"):
                async with client.get(f"/v2/secret/tiny/{path}") as answer:
                    assert answer.status == 401
                    assert answer.headers["WWW-Authenticate"].startswith("Basic realm=")
            assert await code_of(client, image) == (401, "UNAUTHORIZED")
            # No other name leads to the bytes.
            assert await code_of(client, f"/v2/acme/tiny/{secret}") == (404, "BLOB_UNKNOWN")
            assert (await manifest_of(client, "_catalog"))["repositories"] == ["acme/tiny"]
        for text, status in ((token(Scope.PULL, "secret"), 200), (token(Scope.PULL, "acme"), 403)):
            password = base64.b64encode(f"any:{text}".encode()).decode()
            for header in (f"Basic {password}", f"Bearer {text}"):
                async with session(app, Authorization=header) as client:
                    async with client.get("/v2/secret/tiny/manifests/v1") as answer:
                        assert answer.status == status
        for header in ("Basic !!", "Basic eDr/", "Bearer made.up", "Digest x"):
            async with session(app, Authorization=header) as client:
                assert await code_of(client, "/v2/") == (403, "DENIED")


async def test_hostile_requests(tmp_path: Path) -> None:
    pushed(tmp_path, "acme/tiny:v1", {"config.json": b"{}"})
    long = "a" * 4000
    async with door(tmp_path) as app, session(app) as client:
        await manifest_of(client, "acme/tiny/manifests/v1")
        for path, expected in (
            ("acme/tiny/manifests/none", (404, "MANIFEST_UNKNOWN")),
            ("acme/none/manifests/v1", (404, "MANIFEST_UNKNOWN")),
            (f"acme/tiny/manifests/{long}", (404, "MANIFEST_UNKNOWN")),
            (f"{long}/manifests/v1", (404, "NAME_UNKNOWN")),
            ("a/b/c/manifests/v1", (404, "NAME_UNKNOWN")),
            ("acme/tiny@blake3:00/manifests/v1", (404, "NAME_UNKNOWN")),
            ("acme/tiny:v1/manifests/v1", (404, "NAME_UNKNOWN")),
            ("acme%2f..%2f..%2fetc/blobs/passwd", (404, "NAME_UNKNOWN")),
            ("acme/tiny%0a/manifests/v1", (404, "NAME_UNKNOWN")),
            ("acme/tiny/manifests/%2e%2e", (404, "NAME_UNKNOWN")),
            ("acme/tiny/manifests/sha256:12", (400, "DIGEST_INVALID")),
            ("acme/tiny/manifests/md5:" + "0" * 64, (400, "DIGEST_INVALID")),
            ("acme/tiny/blobs/sha256:" + "G" * 64, (400, "DIGEST_INVALID")),
            ("acme/tiny/blobs/sha256:" + "0" * 65, (400, "DIGEST_INVALID")),
            ("acme/tiny/blobs/" + "0" * 64, (400, "DIGEST_INVALID")),
            ("acme/tiny/blobs/sha256:" + "0" * 64, (404, "BLOB_UNKNOWN")),
            ("acme/tiny/manifests/sha256:" + "0" * 64, (404, "MANIFEST_UNKNOWN")),
            ("acme/tiny", (404, "NAME_UNKNOWN")), ("../etc/passwd", (404, "NAME_UNKNOWN")),
        ):  # fmt: skip
            assert await code_of(client, f"/v2/{path}") == expected, path
        for method, path in (
            ("POST", "/v2/acme/tiny/blobs/uploads/"), ("PUT", "/v2/acme/tiny/manifests/v1"),
            ("DELETE", "/v2/acme/tiny/manifests/v1"), ("PATCH", "/v2/acme/tiny/blobs/uploads/1"),
        ):  # fmt: skip
            assert await code_of(client, path, method) == (405, "UNSUPPORTED")


async def test_an_image_unpacks_to_the_model(tmp_path: Path) -> None:
    """Also of a model without SHA-256."""
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/plain:v1")
    async with door(tmp_path) as app, session(app) as client:
        path = "image/acme/plain"
        index = await manifest_of(client, f"{path}/manifests/v1")
        manifest = await manifest_of(client, f"{path}/manifests/{index['manifests'][0]['digest']}")
        config = await _whole(client, f"/v2/{path}/blobs/{manifest['config']['digest']}")
        assert digest(config) == manifest["config"]["digest"]
        (layer,) = manifest["layers"]
        url = f"/v2/{path}/blobs/{layer['digest']}"
        data = await _whole(client, url)
        assert (digest(data), len(data)) == (layer["digest"], layer["size"])
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            found = {one.name: opened.extractfile(one) for one in opened}
            assert {name: body and body.read() for name, body in found.items()} == {
                f"models/{name}": body for name, body in FILES.items()
            }
        async with client.get(url, headers={"Range": "bytes=400-3000200"}) as answer:
            assert (answer.status, await answer.read()) == (206, data[400:3000201])
        assert await code_of(client, f"/v2/acme/plain/blobs/{layer['digest']}") == (
            404,
            "BLOB_UNKNOWN",
        )
        assert await code_of(client, "/v2/image/acme/none/manifests/v1") == (
            404,
            "MANIFEST_UNKNOWN",
        )
        assert await code_of(client, f"/v2/image/acme/plain/manifests/{digest(b'')}") == (
            404,
            "MANIFEST_UNKNOWN",
        )
        await until_listed(app, "acme/plain:v1")


async def test_beyond_loopback_it_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="oci_listen"):
        async with agent(tmp_path, oci_listen="0.0.0.0:0"):
            pass


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo (make tools)")
async def test_skopeo_copies_every_byte(tmp_path: Path) -> None:
    pushed(tmp_path, "acme/tiny:v1")
    async with door(tmp_path) as app:
        image = f"docker://{address(app)}/acme/tiny:v1"
        await skopeo("copy", "--src-tls-verify=false", image, f"dir:{tmp_path / 'copy'}")
        for data in FILES.values():
            assert (tmp_path / "copy" / hashlib.sha256(data).hexdigest()).read_bytes() == data
        listed = await skopeo("list-tags", "--tls-verify=false", image.rpartition(":")[0])
        assert json.loads(listed)["Tags"] == ["v1"]
        # The client has the last byte a moment before the model is published.
        await until_listed(app, "acme/tiny:v1")


async def skopeo(*words: str) -> str:
    """What skopeo prints."""
    ran = await asyncio.to_thread(
        subprocess.run, ["skopeo", "--insecure-policy", *words], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
