"""Imports into a running agent, from a directory: what is read, written and served."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from p2pcache.agent.imports import imports
from p2pcache.core.format.manifest import digest_of, encode
from p2pcache.core.format.source_record import CHANGED
from p2pcache.ids import Ref
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.imports.import_folder import ImportFolder
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.sources.settings import SourceSettings
from tests.agent.jobs.warm_kit import cluster, until
from tests.agent.kit import agent, client, events, make_model, pull
from tests.io.sources.kit import Web, serving
from tests.tracker.kit import tracker

FILES = {
    "a.bin": os.urandom(1_200_000), "config.json": b"{}", "sub/same.json": b"{}", "empty": b"",
    "sub/b.bin": os.urandom(300_000),
}  # fmt: skip


def lake(tmp: Path, **more: Any) -> dict[str, SourceSettings]:
    """A source that holds one model, `m`."""
    make_model(tmp / "lake" / "m", FILES)
    (tmp / "origin").mkdir(exist_ok=True)
    return {"lake": SourceSettings(url=(tmp / "lake").as_uri(), **more)}


def tree(app: Any, done: dict[str, Any]) -> Path:
    """The directory that a pull made."""
    return Path(app.settings.cache_dir, "models", done["path"])


async def taken(app: Any, url: str, ref: str = "team/m:v1", **how: Any) -> list[dict[str, Any]]:
    """The events of an import, or the body of a refusal."""
    async with (
        client(app) as session,
        session.post("/v1/import", json={"url": url, "ref": ref, **how}) as answer,
    ):
        return await events(answer)


async def test_a_model_is_imported_and_other_nodes_read_it_at_the_source(tmp_path: Path) -> None:
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    manifest, _ = index_directory(tmp_path / "lake" / "m")
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        done = (await taken(first, f"{sources['lake'].url}/m"))[-1]
        assert done["event"] == "done", done
        assert done["bytes_read"] == done["bytes"] == manifest.size_bytes
        again = await pull(first, "team/m:v1")
        assert (again["bytes_origin"], again["bytes_peers"]) == (0, 0)
        assert (tree(first, again) / "a.bin").read_bytes() == FILES["a.bin"]
        assert not list((tmp_path / "a" / "imports").iterdir())
    assert not (tmp_path / "origin/p2pcache/v1/blobs").exists()
    # Another node, alone: all of its bytes come from the source.
    async with agent(tmp_path, "b", origin=origin, sources=sources) as second:
        got = await pull(second, "team/m:v1")
        assert got["event"] == "done", got
        assert got["digest"] == done["digest"]
        for name, data in FILES.items():
            assert (tree(second, got) / name).read_bytes() == data


async def test_an_import_over_the_quota_keeps_no_bytes_and_reads_none_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = lake(tmp_path)
    async with (
        tracker(tmp_path / "origin", namespace_quotas="team=1KB") as one,
        agent(tmp_path, "a", tracker=f"http://{one.address}", sources=sources) as app,
    ):
        await until(lambda: app.resolver.repo is not None)
        refused = (await taken(app, f"{sources['lake'].url}/m"))[-1]
        assert (refused["event"], refused["code"]) == ("error", 5), refused
        assert "quota of namespace team" in refused["message"]
        assert not list((tmp_path / "a" / "imports").rglob("*.part"))
        assert not app.store.models()
        assert not app.downloads.busy()
        with monkeypatch.context() as patched:
            patched.delattr("p2pcache.agent.imports.imports.Importing.read_files")
            again = (await taken(app, f"{sources['lake'].url}/m"))[-1]
        assert again["code"] == 5, again
        done = (await taken(app, f"{sources['lake'].url}/m", "other/m:v1"))[-1]
        assert done["event"] == "done", done


def test_parts_of_another_import_of_the_place_stay(tmp_path: Path) -> None:
    """With other patterns it shares the folder."""
    folder = ImportFolder(tmp_path / "import")
    for path in ("a.bin", "b.bin"):
        folder.part(path).write_bytes(b"x")
    folder.drop_parts(["a.bin", "never-read"])
    assert list(folder.path.glob("*.part")) == [folder.part("b.bin")]
    folder.close()


async def test_the_manifest_is_that_of_a_push(tmp_path: Path) -> None:
    sources = lake(tmp_path)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri(), sources=sources) as app:
        done = (await taken(app, f"{sources['lake'].url}/m", copy=True))[-1]
    assert done["digest"] == digest_of(encode(index_directory(tmp_path / "lake" / "m")[0]))
    assert len(list((tmp_path / "origin/p2pcache/v1/blobs").iterdir())) == 4
    repo = OriginRepo(open_origin((tmp_path / "origin").as_uri()))
    assert repo.sources_of(done["digest"]) is None


@pytest.mark.parametrize("gone", [False, True])
async def test_what_changed_at_the_source_ends_a_pull_with_code_6(
    tmp_path: Path, gone: bool
) -> None:
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        assert (await taken(first, f"{sources['lake'].url}/m"))[-1]["event"] == "done"
    (tmp_path / "lake/m/a.bin").unlink()
    if not gone:
        (tmp_path / "lake/m/a.bin").write_bytes(os.urandom(1_200_000))
    async with agent(tmp_path, "b", origin=origin, sources=sources) as second:
        failed = await pull(second, "team/m:v1")
        assert failed["code"] == 6
        assert "lake/m/a.bin" in failed["message"]
        assert CHANGED in failed["message"]
        assert "--repair" not in failed["message"]
    # Imported again it is good again.
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        done = (await taken(first, f"{sources['lake'].url}/m"))[-1]
        assert done["generation"] == 2


async def test_a_node_without_the_source_says_so(tmp_path: Path) -> None:
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        assert (await taken(first, f"{sources['lake'].url}/m"))[-1]["event"] == "done"
    async with agent(tmp_path, "b", origin=origin) as second:
        failed = await pull(second, "team/m:v1")
        assert failed["code"] == 4
        assert "[sources.lake]" in failed["message"]


async def test_only_configured_sources_and_namespaces(tmp_path: Path) -> None:
    sources = lake(tmp_path, namespaces="team, other")
    origin = (tmp_path / "origin").as_uri()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("k")
    (tmp_path / "lake/m/link").symlink_to(tmp_path / "secret/key")
    async with agent(tmp_path, origin=origin, sources=sources) as app:
        for url, ref, code in (
            ("file:///etc", "team/m:v1", 2),
            (f"{sources['lake'].url}/../secret", "team/m:v1", 6),
            (f"{sources['lake'].url}/m", "third/m:v1", 4),
            (f"{sources['lake'].url}/m", "team/m:v1", 2),  # the link
            (f"{sources['lake'].url}/nothing", "team/m:v1", 3),
        ):
            refused = (await taken(app, url, ref))[-1]
            assert refused["code"] == code, refused
        assert (await taken(app, f"{sources['lake'].url}/m", exclude=["link"]))[-1]["code"] == 2
        refused = (await taken(app, "ftp://host/m"))[-1]
        assert "expected one of file://" in refused["message"], "no setting would help"
    assert not list(OriginRepo(open_origin(origin)).refs("team"))


async def test_an_import_again_of_what_is_partly_here(tmp_path: Path) -> None:
    """Blobs that have a file already are filled from the parts."""
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    async with agent(tmp_path, origin=origin, sources=sources) as app:
        first = (await taken(app, f"{sources['lake'].url}/m", include=["*.bin"]))[-1]
        assert first["files"] == 2
        (tmp_path / "lake/m/config.json").write_text("[]")
        second = (await taken(app, f"{sources['lake'].url}/m"))[-1]
        assert second["generation"] == 2
        got = await pull(app, "team/m:v1")
        assert got["bytes_origin"] == 0
        assert (tree(app, got) / "config.json").read_text() == "[]"
        assert (tree(app, got) / "sub/b.bin").read_bytes() == FILES["sub/b.bin"]
    tag = OriginRepo(open_origin(origin)).get_tag(Ref.parse("team/m:v1"))
    assert tag.digest == second["digest"]


async def test_a_cluster_reads_the_source_once_by_lease(tmp_path: Path) -> None:
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        assert (await taken(first, f"{sources['lake'].url}/m"))[-1]["event"] == "done"
    async with cluster(tmp_path, "", "", "", sources=sources) as nodes:
        done = await asyncio.gather(*(pull(one, "team/m:v1") for one in nodes))
        assert [one.get("event") for one in done] == ["done"] * 3, done
        size = sum(len(data) for data in set(FILES.values()))
        assert size <= sum(one["bytes_origin"] for one in done) <= 1.25 * size
        for one, got in zip(nodes, done, strict=True):
            assert (tree(one, got) / "a.bin").read_bytes() == FILES["a.bin"]


async def test_a_node_without_the_source_gets_all_from_one_that_has_it(tmp_path: Path) -> None:
    sources, origin = lake(tmp_path), (tmp_path / "origin").as_uri()
    async with agent(tmp_path, "a", origin=origin, sources=sources) as first:
        assert (await taken(first, f"{sources['lake'].url}/m"))[-1]["event"] == "done"
    async with tracker(tmp_path / "origin") as one:
        where = {"tracker": f"http://{one.address}"}
        async with (
            agent(tmp_path, "b", **where) as bare,
            agent(tmp_path, "c", sources=sources, **where) as reader,
        ):
            await until(lambda: all(app.link and app.link.connected for app in (bare, reader)))
            # A node that asks before anybody else may be told at once that nobody reads it.
            reading = asyncio.gather(pull(reader, "team/m:v1"))
            await until(lambda: reader.downloads.swarms)
            got = await pull(bare, "team/m:v1")
            (read,) = await reading
    assert (got["event"], read["event"]) == ("done", "done"), (got, read)
    assert got["bytes_origin"] == 0


async def test_a_cluster_learns_that_the_source_changed_and_serves_on(tmp_path: Path) -> None:
    sources = lake(tmp_path)
    async with cluster(tmp_path, "", "", "", sources=sources) as nodes:
        assert (await taken(nodes[0], f"{sources['lake'].url}/m"))[-1]["event"] == "done"
        (tmp_path / "lake/m/a.bin").write_bytes(os.urandom(1_200_000))
        # The importer has all of it, and gives it to others.
        served = await pull(nodes[1], "team/m:v1")
        assert (served["event"], served["bytes_origin"]) == ("done", 0)
    (tmp_path / "n").mkdir()
    (tmp_path / "n/origin").symlink_to(tmp_path / "origin")
    async with cluster(tmp_path / "n", "", "", sources=sources) as strangers:
        failed = await asyncio.gather(*(pull(one, "team/m:v1") for one in strangers))
        assert [one["code"] for one in failed] == [6, 6], failed
        assert all(CHANGED in one["message"] for one in failed), failed


async def test_a_server_without_ranges_is_refused_unless_its_files_are_copied(
    tmp_path: Path,
) -> None:
    (tmp_path / "origin").mkdir()
    origin = (tmp_path / "origin").as_uri()
    with serving(Web()) as web:
        web.files["/m/a.bin"], web.ranges = FILES["a.bin"], False
        sources = {"w": SourceSettings(url=web.url)}
        async with agent(tmp_path, "a", origin=origin, sources=sources) as app:
            refused = (await taken(app, f"{web.url}/m/a.bin"))[-1]
            assert refused["code"] == 2, refused
            assert "a.bin: this server sends whole files only" in refused["message"]
            assert "import with --copy" in refused["message"]
            assert app.store.models() == []
            done = (await taken(app, f"{web.url}/m/a.bin", copy=True))[-1]
            assert done["event"] == "done", done
    async with agent(tmp_path, "b", origin=origin) as second:
        got = await pull(second, "team/m:v1")
        assert got["event"] == "done", got
        assert (tree(second, got) / "a.bin").read_bytes() == FILES["a.bin"]


async def test_an_agent_that_stops_ends_its_imports(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    data = bytes(60_000_000)
    with serving(Web()) as web:
        web.files["/m/a.bin"] = data
        more: dict[str, Any] = {
            "origin": (tmp_path / "origin").as_uri(), "sources": {"w": SourceSettings(url=web.url)},
            "origin_bytes_per_s": 5_000_000,
        }  # fmt: skip
        async with agent(tmp_path, **more) as app:
            begun = asyncio.gather(taken(app, f"{web.url}/m/a.bin"), return_exceptions=True)
            await until(web.bodies)
            assert any(one.name.startswith("import") for one in threading.enumerate())
        await begun
        async with asyncio.timeout(8):
            await until(
                lambda: not any(one.name.startswith("import_") for one in threading.enumerate())
            )


async def test_an_import_says_that_it_waits_for_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said nothing, and the command told of an agent that doesn't answer."""
    monkeypatch.setattr(imports, "WAITING_S", 0.3)
    sources, listed = lake(tmp_path), imports._listed

    def slowly(*args: Any) -> Any:
        time.sleep(1)
        return listed(*args)

    monkeypatch.setattr(imports, "_listed", slowly)
    async with agent(tmp_path, origin=(tmp_path / "origin").as_uri(), sources=sources) as app:
        told = await taken(app, f"{sources['lake'].url}/m")
    assert told[0]["event"] == "waiting"
    assert told[0]["for"] == f"source lake ({sources['lake'].url})"
    assert told[-1]["event"] == "done"


async def test_an_import_whose_source_does_not_answer_hears_that_the_agent_stops(
    tmp_path: Path,
) -> None:
    """The question whether parts can be read went on for its 30 s."""
    (tmp_path / "origin").mkdir()
    with serving(Web()) as web:
        web.files["/m/a.bin"] = FILES["a.bin"]
        web.spoil = lambda _, headers: (503, {}, b"") if "range" in headers else None
        sources = {"w": SourceSettings(url=web.url)}
        async with agent(tmp_path, origin=(tmp_path / "origin").as_uri(), sources=sources) as app:
            begun = asyncio.gather(taken(app, f"{web.url}/m/a.bin"), return_exceptions=True)
            await until(web.bodies)
        await begun
        asked = len(web.bodies())
        await asyncio.sleep(4)  # tries are 3 s apart at most
        assert len(web.bodies()) <= asked + 1, "one may be under way"


async def test_a_source_that_lies_leaves_nothing_behind(tmp_path: Path) -> None:
    """Sizes that no disk has, other bytes than were listed: one clear error each, and nothing is published."""
    (tmp_path / "origin").mkdir()
    origin = (tmp_path / "origin").as_uri()
    with serving(Web()) as web:
        sources = {
            "w": SourceSettings(url=web.url),
            "g": SourceSettings(url="gs://lake", endpoint=web.url),
        }
        listed = {"name": "m/a.bin", "generation": "7"}
        ranged = {"X-Goog-Generation": "7", "Content-Range": "bytes 0-99/50"}
        async with agent(tmp_path, origin=origin, sources=sources) as app:
            for size, code in ((2**62, 5), (2**70, 5), (100, 6)):
                page = json.dumps({"items": [{**listed, "size": str(size)}]}).encode()
                web.spoil = lambda path, _, page=page: (  # type: ignore[misc]
                    (206, ranged, bytes(50)) if "alt=media" in path else (200, {}, page)
                )
                refused = (await taken(app, "gs://lake/m"))[-1]
                assert refused["code"] == code, refused
            web.spoil = lambda _path, _headers: (200, {"Content-Length": str(2**62)}, b"")
            refused = (await taken(app, f"{web.url}/m/a.bin"))[-1]
            assert refused["code"] == 5, refused
            assert app.store.models() == []
            assert not list((tmp_path / "a0/imports").glob("*/*.part"))
    assert not list(OriginRepo(open_origin(origin)).refs("team"))
    assert not (tmp_path / "origin/p2pcache").exists()
