"""One agent without a tracker, over its real socket, against a directory origin."""

import asyncio
import io
import random
from pathlib import Path

import pytest

from p2pcache.core.format.manifest import encode
from p2pcache.ids import Ref
from tests.agent.kit import agent, client, events, make_model, pull, push

DATA = random.Random(7).randbytes(3_000_000)
FILES = {"weights.bin": DATA, "config.json": b"{}", "sub/empty": b"", "sub/copy.bin": DATA}


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    push(tmp_path / "origin", make_model(tmp_path / "model", FILES), "team/m:v1")
    return tmp_path / "origin"


async def test_pull_gives_the_files_once(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        first = await pull(app, "team/m:v1")
        assert first["event"] == "done"
        assert first["bytes"] == sum(map(len, FILES.values()))
        assert first["bytes_origin"] == len(DATA) + 2  # the copy and the empty file cost nothing
        tree = Path(first["models_dir"]) / first["path"]
        assert {name: (tree / name).read_bytes() for name in FILES} == FILES
        assert (tree.parent / "v1").readlink() == Path(tree.name)
        again = await pull(app, "team/m:v1")
        assert again["bytes_origin"] == 0
        assert again["path"] == first["path"]


async def test_many_clients_share_one_fetch(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=3_000_000) as app:
        ends = await asyncio.gather(*(pull(app, "team/m:v1") for _ in range(50)))
        assert {end["event"] for end in ends} == {"done"}
        assert app.metrics.totals()["origin"] == len(DATA) + 2


async def test_restart_keeps_the_cache_and_an_outage_is_survived(
    tmp_path: Path, origin: Path
) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        await pull(app, "team/m:v1")
    origin.rename(tmp_path / "gone")
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        again = await pull(app, "team/m:v1")
        assert (again["event"], again["bytes_origin"]) == ("done", 0)
        missing = await pull(app, "team/other:v1")
        assert missing["code"] == 3
        async with session.get("/readyz") as answer:
            assert answer.status == 503
            assert "origin" in (await answer.json())["reasons"][0]
        async with session.get("/readyz?model=team/m:v1") as answer:
            assert all("team/m" not in reason for reason in (await answer.json())["reasons"])


async def test_resumes_where_it_was_cut_off(tmp_path: Path) -> None:
    size = 12_000_000
    origin = tmp_path / "origin"
    push(origin, make_model(tmp_path / "long", {"w": random.Random(1).randbytes(size)}), "long")
    async with agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=1_000_000) as app:
        async with client(app) as session, session.post("/v1/pull", json={"ref": "long"}) as answer:
            async with asyncio.timeout(30):
                while not any(swarm.bytes_done for swarm in app.downloads.swarms.values()):
                    await asyncio.sleep(0.02)
            answer.close()
        had = app.downloads.swarms[next(iter(app.downloads.swarms))].bytes_done
        assert 0 < had < size
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        end = await pull(app, "long")
        assert end["event"] == "done"
        assert 0 < end["bytes_origin"] <= size - had


async def test_corrupt_origin_ends_with_6_and_few_reads(tmp_path: Path, origin: Path) -> None:
    blob = max((origin / "p2pcache/v1/blobs").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[1_000_000] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        async with asyncio.timeout(30):
            end = await pull(app, "team/m:v1")
        assert (end["event"], end["code"]) == ("error", 6)
        assert "push" in end["message"]
        assert not list((tmp_path / "a/models").rglob("weights.bin"))


async def test_a_tag_that_went_back_is_refused(tmp_path: Path, origin: Path) -> None:
    tag = origin / "p2pcache/v1/tags/team/m/v1"
    old = tag.read_bytes()
    push(origin, make_model(tmp_path / "model2", {"x": b"2"}), "team/m:v1")
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        assert (await pull(app, "team/m:v1"))["bytes"] == 1
        tag.unlink()
        tag.write_bytes(old)
        refused = await pull(app, "team/m:v1")
        assert refused["code"] == 6
        assert "--force-generation" in refused["message"]
        forced = await pull(app, "team/m:v1", force_generation=True)
        assert forced["event"] == "done"


async def test_no_space_is_an_error_before_the_first_byte(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri(), min_free_bytes=1 << 60) as app:
        end = await pull(app, "team/m:v1")
        assert end["code"] == 5
        assert app.metrics.totals()["origin"] == 0


async def test_push_through_the_agent(tmp_path: Path) -> None:
    origin = tmp_path / "fresh"
    origin.mkdir()
    layout = push(tmp_path / "elsewhere", make_model(tmp_path / "model", FILES), "m")
    encoded = encode(layout.manifest)
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        async with session.post("/v1/push", json={"ref": "m", "digest": layout.digest}) as answer:
            assert answer.status == 404  # nothing was sent yet
        async with session.post("/v1/manifests", data=encoded) as answer:
            said = await answer.json()
        assert said["digest"] == layout.digest
        for item in said["missing"]:
            url = f"/v1/blobs/{layout.digest}/{item['blob']}"
            good = FILES[item["path"]]
            async with session.put(url, data=io.BytesIO(bytes(len(good)))) as answer:
                assert answer.status == (200 if good == bytes(len(good)) else 422)
            async with session.put(url, data=io.BytesIO(good)) as answer:
                assert answer.status == 200
        async with session.post("/v1/push", json={"ref": "m", "digest": layout.digest}) as answer:
            done = (await events(answer))[-1]
        assert (done["event"], done["generation"]) == ("done", 1)
        assert done["bytes_uploaded"] == len(DATA) + 2
        end = await pull(app, "m")
        assert end["bytes_origin"] == 0
    async with agent(tmp_path, "b", origin=origin.as_uri()) as other:
        assert (await pull(other, "m"))["event"] == "done"


async def test_rm_and_prune(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        await pull(app, "team/m:v1")
        digest = app.store.models()[0].digest
        await pull(app, f"team/m@blake3:{digest}")
        async with session.delete("/v1/model?ref=team/m:v1") as answer:
            assert (await answer.json())["bytes_freed"] >= len(DATA)
        async with session.get("/v1/models") as answer:
            assert (await answer.json())["models"] == []
        async with session.delete("/v1/model?ref=team/m:v1") as answer:
            assert answer.status == 404
        await pull(app, f"team/m@blake3:{digest}")
        async with session.post("/v1/prune", json={"dry_run": True}) as answer:
            assert len((await answer.json())["removed"]) == 1
        async with session.post("/v1/prune", json={}) as answer:
            assert (await answer.json())["bytes_freed"] >= len(DATA)
        assert app.downloads.swarms == {}


async def test_rm_of_a_running_pull_is_refused(tmp_path: Path, origin: Path) -> None:
    async with (
        agent(tmp_path, origin=origin.as_uri(), origin_bytes_per_s=500_000) as app,
        client(app) as session,
    ):
        pulling = session.post("/v1/pull", json={"ref": "team/m:v1"})
        async with pulling as answer:
            await answer.content.readline()
            digest = next(iter(app.downloads.running))
            async with session.delete(f"/v1/model?ref=team/m@blake3:{digest}") as refused:
                assert refused.status == 409


async def test_verify_finds_rot_and_pull_mends_it(tmp_path: Path, origin: Path) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        first = await pull(app, "team/m:v1")
        path = Path(first["models_dir"]) / first["path"] / "weights.bin"
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(5)
            file.write(b"rot")
        async with session.post("/v1/verify", json={"ref": "team/m:v1"}) as answer:
            assert (await events(answer))[-1]["chunks_bad"] == 1
        mended = await pull(app, "team/m:v1")
        assert mended["event"] == "done"
        assert app.metrics.totals()["origin"] == len(DATA) + 2 + 256 * 1024
        assert (Path(mended["models_dir"]) / mended["path"] / "weights.bin").read_bytes() == DATA


@pytest.mark.parametrize("harm", ["removed", "replaced"])
async def test_a_damaged_tree_is_published_again(tmp_path: Path, origin: Path, harm: str) -> None:
    async with agent(tmp_path, origin=origin.as_uri()) as app:
        first = await pull(app, "team/m:v1")
        tree = Path(first["models_dir"]) / first["path"]
        (tree / "config.json").unlink()
        if harm == "replaced":
            (tree / "config.json").write_bytes(b"[]")  # as `sed -i` does: another file, same name
        again = await pull(app, "team/m:v1")
        assert again["bytes_origin"] == 0
        assert {name: (tree / name).read_bytes() for name in FILES} == FILES


async def test_client_socket_can_only_pull(tmp_path: Path, origin: Path) -> None:
    path = str(tmp_path / "client.sock")
    async with agent(tmp_path, origin=origin.as_uri(), client_socket=path) as app:
        async with client(app, path=path) as session:
            async with session.post("/v1/pull", json={"ref": "team/m:v1"}) as answer:
                assert (await events(answer))[-1]["event"] == "done"
            for method, url in (
                ("POST", "/v1/push"), ("DELETE", "/v1/model?ref=team/m:v1"), ("POST", "/v1/prune"),
                ("POST", "/v1/manifests"), ("PUT", "/v1/blobs/a/b"), ("POST", "/v1/linger"),
            ):  # fmt: skip
                async with session.request(method, url, json={}) as answer:
                    assert answer.status == 403, url
    assert Ref.parse("team/m:v1")


async def test_bad_requests_are_client_errors(tmp_path: Path) -> None:
    async with agent(tmp_path) as app, client(app) as session:
        for body in (
            b"{",
            b"[]",
            b'{"ref": 5}',
            b'{"ref": "no model"}',
            b'{"ref": "a", "x": 1}',
        ):
            async with session.post("/v1/pull", data=body) as answer:
                assert answer.status == 400, body[:20]
                assert (await answer.json())["code"] == 2
        async with session.post("/v1/pull", data=io.BytesIO(b"x" * 2_000_000)) as answer:
            assert answer.status == 400
        async with session.post("/v1/pull", json={"ref": "a"}) as answer:
            assert (await answer.json())["code"] == 8
        async with session.post("/v1/manifests", data=b"{}") as answer:
            assert (await answer.json())["code"] == 6


async def test_metrics_speak_prometheus(tmp_path: Path, origin: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with agent(tmp_path, origin=origin.as_uri()) as app, client(app) as session:
        await pull(app, "team/m:v1")
        async with session.get("/metrics") as answer:
            families = {f.name: f for f in text_string_to_metric_families(await answer.text())}
    received = {
        s.labels["source"]: s.value for s in families["p2pcache_agent_received_bytes"].samples
    }
    assert received["origin"] == len(DATA) + 2
    assert families["p2pcache_agent_pulls"].samples[0].value == 1


async def test_recycle_bytes_is_accepted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with agent(tmp_path):
        assert "recycle_bytes" not in caplog.text
    async with agent(tmp_path, recycle_bytes=1 << 30):
        assert "recycle_bytes does nothing any more" in caplog.text
