"""The hub door: an unmodified huggingface_hub reads models through an agent, while chunks arrive."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors import hub_answers
from p2pcache.cli.main import cli
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import File, encode
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import UsageError
from p2pcache.ids import Ref
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.api.rights_kit import token, write_key
from tests.agent.doors.kit import door_of, until_listed
from tests.agent.kit import HeldReads, agent, client, make_model, pull, push

WEIGHTS = random.Random(1).randbytes(3_000_000)  # workers of a test run must see the same cases
FILES = {
    "config.json": b'{"model_type": "none"}', "model.safetensors": WEIGHTS, "empty.txt": b"",
    "sub/dir/vocab \u00fc.txt": b"one\ntwo\n",
}  # fmt: skip

CLIENT = """
import json, sys
from pathlib import Path
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError)
"""


door = door_of("hf_listen")


def endpoint(app: AgentApp) -> str:
    return f"http://{app.listeners.door_addresses['hf_listen']}"


async def hub_client(app: AgentApp, tmp: Path, code: str, **env: str) -> str:
    """What an unmodified huggingface_hub prints in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": endpoint(app), "HF_HOME": str(tmp / "hf"), "HF_TOKEN": "hf_abcdef"}
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CLIENT + code], env=clean | settings | env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


async def test_a_snapshot_has_every_byte_and_is_there_offline(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:latest")
    async with door(tmp_path) as app:
        folder = Path((await hub_client(
            app, tmp_path, "print(snapshot_download('Acme/Tiny'), end='')"
        )).strip())  # fmt: skip
        found = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()
        }  # fmt: skip
        assert found == FILES
        await until_listed(app, "acme/tiny:latest")
        (model,) = app.store.models()
        assert folder.name == model.digest[:40]
    offline = "print(snapshot_download('Acme/Tiny'), end='')"
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT + offline], capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert ran.stdout == str(folder), ran.stderr[-2000:]


async def test_one_file_brings_that_file_alone(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:main")
    async with door(tmp_path) as app:
        code = "print(Path(hf_hub_download('acme/tiny', 'config.json')).read_text(), end='')"
        assert (await hub_client(app, tmp_path, code)).encode() == FILES["config.json"]
        (swarm,) = app.downloads.swarms.values()
        assert swarm.bytes_done < 1_000_000


async def test_what_isnt_there_is_the_clients_own_exception(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:latest")
    code = """
def kind(*words, **more):
    try:
        return hf_hub_download(*words, **more)
    except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError) as error:
        return type(error).__name__
print(kind("acme/none", "config.json"), kind("acme/tiny", "none.json"),
      kind("acme/tiny", "config.json", revision="v9"), kind("acme/tiny", "x", revision="refs/pr/4"))
api = HfApi()
print(api.file_exists("acme/tiny", "config.json"), api.file_exists("acme/tiny", "none"), api.repo_exists("acme/no"),
      api.revision_exists("acme/tiny", "v1"), api.revision_exists("acme/tiny", "v9"))
print(sorted(api.list_repo_files("acme/tiny")))
print([branch.name for branch in api.list_repo_refs("acme/tiny").branches])
print([(one.path, getattr(one, "size", None)) for one in api.list_repo_tree("acme/tiny", "sub/dir")])
print([one.path for one in api.get_paths_info("acme/tiny", ["config.json", "none", "sub/dir"])])
print([(one.commit_id == api.model_info("acme/tiny").sha, one.title) for one in api.list_repo_commits("acme/tiny")])
print(HfFileSystem().isdir("acme/tiny/sub"))
print(sum(s.size for s in api.model_info("acme/tiny", files_metadata=True).siblings))
"""
    async with door(tmp_path) as app:
        said = (await hub_client(app, tmp_path, code)).splitlines()
    kinds = said[0].split()
    assert kinds[0] in ("RepositoryNotFoundError", "RevisionNotFoundError")
    assert kinds[1:] in (
        ["RemoteEntryNotFoundError", "RevisionNotFoundError", "RevisionNotFoundError"],
        ["EntryNotFoundError", "RevisionNotFoundError", "RevisionNotFoundError"],
    )
    assert said[1] == "True False False True False"
    assert said[2] == str(sorted(FILES))
    assert said[3:] == [
        "['latest', 'main', 'v1']", "[('sub/dir/vocab \u00fc.txt', 8)]", "['config.json', 'sub/dir']",
        "[(True, 'acme/tiny:latest')]", "True", str(sum(map(len, FILES.values()))),
    ]  # fmt: skip


async def test_long_trees_come_in_pages(tmp_path: Path) -> None:
    files = {f"f{n:04}": b"%d" % n for n in range(2300)}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "acme/many:latest")
    async with door(tmp_path) as app:
        code = "print(len(list(HfApi().list_repo_tree('acme/many', recursive=True))))"
        assert await hub_client(app, tmp_path, code) == "2300\n"


async def test_a_page_of_a_tree_costs_no_more_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"d{n % 7}/f{n:04}": b"%d" % n for n in range(2300)} | {"z": b"z"}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "acme/many:latest")
    made, sorted_ = list[bool](), list[str]()
    entry, names = hub_answers.file_entry, hub_answers.names

    def watched(file: File) -> dict[str, object]:
        made.append(threading.current_thread() is threading.main_thread())
        return entry(file)

    monkeypatch.setattr(hub_answers, "file_entry", watched)

    def counted(files: Iterable[File], folder: str, *, recursive: bool) -> object:
        sorted_.append(folder)
        return names(files, folder, recursive=recursive)

    monkeypatch.setattr(hub_answers, "names", counted)
    tree = "/api/models/acme/many/tree/main"
    async with door(tmp_path) as app, aiohttp.ClientSession(endpoint(app)) as session:
        found = list[str]()
        url: str | None = f"{tree}?recursive=true"
        while url:
            async with session.get(url) as answer:
                found += [one["path"] for one in await answer.json()]
                following = answer.links.get("next")
                url = str(following["url"]).removeprefix(endpoint(app)) if following else None
        assert found == sorted([*files, *(f"d{n}" for n in range(7))])
        assert len(made) == len(files)
        assert not any(made)
        assert sorted_ == [""]  # once for all pages
        async with session.get(f"{tree}/d3") as answer:
            assert len(await answer.json()) == 329
        async with session.get(tree) as answer:
            assert len(await answer.json()) == 8
        assert sorted_ == ["", "d3", ""]


async def test_the_etag_is_the_sha256_where_it_is_known(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", FILES)
    manifest, sources = index_directory(made, sha256=True)
    layout = Layout(manifest)
    paths = {number: sources[path] for path, number in layout.blob_of_file.items()}
    (tmp_path / "origin").mkdir()
    OriginRepo(open_origin((tmp_path / "origin").as_uri())).push(
        layout, Ref.parse("acme/known"), open_blob=lambda n: os.open(paths[n], os.O_RDONLY)
    )
    async with door(tmp_path) as app, aiohttp.ClientSession(endpoint(app)) as session:
        for file in manifest.files:
            async with session.head(f"/acme/known/resolve/main/{file.path}") as answer:
                assert answer.status == 200
                assert answer.headers["ETag"] == f'"{file.sha256.hex()}"'
                assert answer.headers["Content-Length"] == str(file.size)
                assert answer.headers["X-Repo-Commit"] == layout.digest[:40]
        async with session.get("/api/models/acme/known/tree/main?recursive=true") as answer:
            entries = {entry["path"]: entry for entry in await answer.json()}
        assert entries["model.safetensors"]["lfs"]["oid"] == next(
            f.sha256.hex() for f in manifest.files if f.path == "model.safetensors"
        )
    assert encode(manifest).startswith(b'{"format":"p2pcache.manifest.v1.1"')


async def test_the_client_can_verify_its_copy(tmp_path: Path) -> None:
    made = make_model(tmp_path / "m", FILES)
    (tmp_path / "origin").mkdir()
    said = await asyncio.to_thread(
        CliRunner().invoke, cli,
        ["push", str(made), "acme/known", "--sha256", "--origin", (tmp_path / "origin").as_uri()],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    code = """
from huggingface_hub.cli.hf import main
snapshot_download("acme/known")
sys.argv = ["hf", "cache", "verify", "acme/known"]
main()
"""
    async with door(tmp_path) as app:
        assert "4 file(s)" in await hub_client(app, tmp_path, code)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=10-19", WEIGHTS[10:20]), ("bytes=2999990-", WEIGHTS[-10:]), ("bytes=-7", WEIGHTS[-7:]),
        ("bytes=0-0", WEIGHTS[:1]), ("bytes=100-9999999", WEIGHTS[100:]), ("bytes=5-2", WEIGHTS),
        ("lines=1-2", WEIGHTS), ("bytes=1-2,5-6", WEIGHTS),
    ],
)  # fmt: skip
async def test_ranges(tmp_path: Path, header: str, expected: bytes) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:latest")
    async with door(tmp_path) as app, aiohttp.ClientSession(endpoint(app)) as session:
        url = "/acme/tiny/resolve/main/model.safetensors"
        async with session.get(url, headers={"Range": header}) as answer:
            assert await answer.read() == expected
            assert answer.status == (200 if expected == WEIGHTS else 206)
        async with session.get(url, headers={"Range": "bytes=3000000-"}) as answer:
            assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */3000000")


async def test_bytes_go_out_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:latest")
    reads = HeldReads(monkeypatch)
    async with door(tmp_path) as app, aiohttp.ClientSession(endpoint(app)) as session:
        url = "/acme/tiny/resolve/main/model.safetensors"
        getting = asyncio.gather(_whole(session, url))
        await reads.until_begun()
        async with session.head(url) as answer:  # a head waits for no byte
            assert answer.status == 200
        assert not getting.done()
        reads.let_go.set()
        (found,) = await getting
        assert found == WEIGHTS


async def _whole(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url) as answer:
        return await answer.read()


async def test_what_one_may_not_read_is_gated(tmp_path: Path) -> None:
    """The client says so, and why, instead of doubting the network."""
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "secret/tiny:latest")
    code = """
def kind(call, **more):
    try:
        return call("secret/tiny", **more)
    except Exception as error:
        return f"{type(error).__name__} {'the right to pull' in str(error)}"
print(kind(hf_hub_download, filename="config.json"), kind(snapshot_download), kind(HfApi().model_info))
for call in (lambda: HfApi().create_repo("acme/new"),
             lambda: HfApi().upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id="secret/tiny")):
    try:
        call()
    except HfHubHTTPError as error:
        print(error.response.status_code, "push with p2pcache push" in error.server_message)
"""
    more = {"client_namespaces": "acme", "token_key_file": write_key(tmp_path / "token.key")}
    async with door(tmp_path, **more) as app:
        said = (await hub_client(app, tmp_path, code)).splitlines()
    assert said == [" ".join(["GatedRepoError True"] * 3), "405 True", "405 True"]


async def test_other_namespaces_and_writes_are_refused(tmp_path: Path) -> None:
    for ref in ("acme/tiny:latest", "secret/tiny:latest"):
        push(tmp_path / "origin", make_model(tmp_path / "m", FILES), ref)
    key = write_key(tmp_path / "token.key")
    more = {"client_namespaces": "acme", "token_key_file": key}
    async with door(tmp_path, **more) as app, aiohttp.ClientSession(endpoint(app)) as session:
        digest = ""
        for repo, status in (("acme/tiny", 200), ("secret/tiny", 403)):
            async with session.get(f"/api/models/{repo}") as answer:
                assert answer.status == status
                digest = digest or (await answer.json())["sha"]
        async with session.get(f"/secret/tiny/resolve/{digest}/config.json") as answer:
            assert answer.status == 403
        async with session.get(f"/acme/other/resolve/{digest}/config.json") as answer:
            assert answer.status == 404  # another name doesn't lead to the model
        bearer = {"Authorization": f"Bearer {token(Scope.PULL, 'secret')}"}
        async with session.get("/api/models/secret/tiny", headers=bearer) as answer:
            assert answer.status == 200
        for method, path in (
            ("POST", "/api/repos/create"), ("POST", "/api/models/acme/tiny/commit/main"),
            ("PUT", "/acme/tiny/resolve/main/config.json"), ("GET", "/v1/status"), ("GET", "/etc/passwd"),
            ("GET", "/acme/tiny/resolve/main/..%2f..%2fconfig.json"), ("GET", "/api/models/a%0ab/c"),
        ):  # fmt: skip
            async with session.request(method, path) as answer:
                assert answer.status in (404, 405), path


async def test_beyond_loopback_it_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hf_listen"):
        async with agent(tmp_path, hf_listen="0.0.0.0:0"):
            pass


async def test_a_model_stays_while_it_is_read(tmp_path: Path) -> None:
    files = {"w.bin": os.urandom(48 << 20)}  # more than the sockets' buffers take
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "acme/big:latest")
    async with door(tmp_path) as app, asyncio.timeout(50):
        await pull(app, "acme/big")
        wish = {"ref": "acme/big"}
        path = "/acme/big/resolve/main/w.bin"
        async with aiohttp.ClientSession(endpoint(app)) as hub, hub.get(path) as reading:
            assert reading.status == 200
            assert len(await reading.content.readexactly(1000)) == 1000
            async with client(app) as session, session.post("/v1/evict", json=wish) as answer:
                assert answer.status == 409
            assert 1000 + len(await reading.read()) == len(files["w.bin"])
        while app.downloads.in_use:
            await asyncio.sleep(0.01)
        async with client(app) as session, session.post("/v1/evict", json=wish) as answer:
            assert answer.status == 200
