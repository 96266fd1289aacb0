"""The S3 door: an unmodified S3 client reads models through an agent, while chunks arrive."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.session import Session

from p2pcache.agent.app import AgentApp
from p2pcache.agent.doors import s3_answers
from p2pcache.core.protocol.tokens import Scope
from p2pcache.errors import UsageError
from p2pcache.ids import Ref
from p2pcache.io.models.store import Store
from p2pcache.io.origins.repo import OriginRepo
from tests.agent.api.rights_kit import token, write_key
from tests.agent.doors.kit import door_of, until_listed
from tests.agent.kit import HeldReads, agent, make_model, pull, push

WEIGHTS = os.urandom(3_000_000)
FILES = {
    "config.json": b"{}", "model.safetensors": WEIGHTS, "empty.txt": b"",
    "sub/dir/vocab \u00fc&<x>.txt": b"one\ntwo\n",
}  # fmt: skip


door = door_of("s3_listen")


async def asked(
    app: AgentApp,
    question: Callable[[Any], Any],
    session_token: str | None = None,
    *,
    host: str = "127.0.0.1",
) -> Any:
    """What a botocore client gets, on a thread since it blocks; of a failure its code.

    At a host that has a name the client puts the bucket before it.
    """
    port = app.listeners.door_addresses["s3_listen"].rpartition(":")[2]
    style = "path" if host == "127.0.0.1" else "virtual"

    def ask() -> Any:
        client = Session().create_client(
            "s3", region_name="us-east-1", endpoint_url=f"http://{host}:{port}",
            aws_access_key_id="any", aws_secret_access_key="thing", aws_session_token=session_token,
            config=Config(s3={"addressing_style": style}, retries={"max_attempts": 0}),
        )  # fmt: skip
        try:
            return question(client)
        except ClientError as error:
            return error.response["Error"]["Code"]

    return await asyncio.to_thread(ask)


def listing(client: Any, **more: Any) -> tuple[list[str], list[str]]:
    """Keys and common prefixes of all pages."""
    keys, prefixes = [], []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="acme", **more):
        keys += [one["Key"] for one in page.get("Contents", [])]
        prefixes += [one["Prefix"] for one in page.get("CommonPrefixes", [])]
    return keys, prefixes


async def test_a_client_reads_every_byte(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    async with door(tmp_path) as app:

        def read(client: Any) -> dict[str, bytes]:
            keys, _ = listing(client, Prefix="tiny/v1/")
            return {key: client.get_object(Bucket="acme", Key=key)["Body"].read() for key in keys}

        assert await asked(app, read) == {f"tiny/v1/{path}": data for path, data in FILES.items()}
        await until_listed(app, "acme/tiny:v1")


async def test_listings(tmp_path: Path) -> None:
    for ref in ("acme/tiny:v1", "acme/tiny:v2", "acme/tinyer:v1", "other/x:v1"):
        push(tmp_path / "origin", make_model(tmp_path / "m", FILES), ref)
    async with door(tmp_path) as app:
        for ref in ("acme/tiny:v1", "acme/tiny:v2", "acme/tinyer:v1", "other/x:v1"):
            assert (await pull(app, ref))["event"] == "done"
        every = sorted(
            f"{model}/{path}" for model in ("tiny/v1", "tiny/v2", "tinyer/v1") for path in FILES
        )
        assert await asked(app, listing) == (every, [])
        assert await asked(app, lambda c: listing(c, PaginationConfig={"PageSize": 5})) == (
            every,
            [],
        )
        by_name = (["tiny/", "tinyer/"], ["tiny/v1/", "tiny/v2/"])
        assert (await asked(app, lambda c: listing(c, Delimiter="/")))[1] == by_name[0]
        found = await asked(app, lambda c: listing(c, Delimiter="/", Prefix="tiny/"))
        assert found == ([], by_name[1])
        found = await asked(
            app,
            lambda c: listing(
                c, Delimiter="/", Prefix="tiny/v1/", PaginationConfig={"PageSize": 1}
            ),
        )
        assert found == (
            ["tiny/v1/config.json", "tiny/v1/empty.txt", "tiny/v1/model.safetensors"], ["tiny/v1/sub/"],
        )  # fmt: skip
        assert await asked(app, lambda c: listing(c, Prefix="tiny/v9/")) == ([], [])
        # Capitals don't matter, and keys begin as the client wrote them.
        for prefix in ("Tiny/", "Tiny/v", "TI"):
            keys, _ = await asked(app, partial(listing, Prefix=prefix))
            wanted = [key for key in every if key.startswith(prefix.lower())]
            assert keys == [prefix + key[len(prefix) :] for key in wanted]
        assert await asked(app, lambda c: listing(c, Prefix="tiny/V1")) == ([], [])
        found = await asked(app, lambda c: [b["Name"] for b in c.list_buckets()["Buckets"]])
        assert found == ["acme", "other"]
        (digest,) = {model.digest for model in app.store.models()}
        assert (await asked(app, lambda c: listing(c, Prefix=f"tiny/@{digest}/")))[0] == [
            f"tiny/@{digest}/{path}" for path in sorted(FILES)
        ]


# A port on loopback may be called by no other name than localhost.
@pytest.mark.parametrize(
    ("host", "more"),
    [("localhost", {}), ("s3.test", {"s3_domain": "s3.test", "s3_listen": "0.0.0.0:0"})],
)
async def test_a_bucket_may_stand_in_the_host_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, more: dict[str, str]
) -> None:
    for ref in ("acme/tiny:v1", "other/x:v1"):
        push(tmp_path / "origin", make_model(tmp_path / "m", FILES), ref)
    found, hosts = socket.getaddrinfo, set[Any]()

    def getaddrinfo(name: Any, *words: Any, **more: Any) -> Any:
        hosts.add(name)
        return found("127.0.0.1" if str(name).endswith(host) else name, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    key = write_key(tmp_path / "token.key")
    session_token = token(Scope.PULL, "acme")
    async with door(tmp_path, client_namespaces="acme", token_key_file=key, **more) as app:

        def read(client: Any) -> dict[str, bytes]:
            keys, _ = listing(client, Prefix="tiny/v1/")
            client.head_bucket(Bucket="acme")
            return {key: client.get_object(Bucket="acme", Key=key)["Body"].read() for key in keys}

        got = await asked(app, read, session_token, host=host)
        assert got == {f"tiny/v1/{path}": data for path, data in FILES.items()}
        assert f"acme.{host}" in hosts
        refused = await asked(
            app, lambda c: c.get_object(Bucket="other", Key="x/v1/config.json"), session_token,
            host=host,
        )  # fmt: skip
        assert refused == "AccessDenied"


async def test_pages_of_one_model_go_on_where_they_ended(tmp_path: Path) -> None:
    files = {f"d{n % 3}/f{n:02}": b"%d" % n for n in range(12)} | {"z": b"z"}
    push(tmp_path / "origin", make_model(tmp_path / "m", files), "acme/tiny:v1")
    keys = sorted(f"tiny/v1/{path}" for path in files)
    async with door(tmp_path) as app:
        for size in (1, 2, 5, 13, 1000):
            many = {"Prefix": "tiny/v1/", "PaginationConfig": {"PageSize": size}}
            assert await asked(app, partial(listing, **many)) == (keys, [])
            found = await asked(app, partial(listing, Delimiter="/", **many))
            assert found == (["tiny/v1/z"], [f"tiny/v1/d{n}/" for n in range(3)])
        part: dict[str, Any] = {"Bucket": "acme", "Prefix": "tiny/v1/d1"}
        behind = await asked(
            app, lambda c: c.list_objects_v2(StartAfter="tiny/v1/d1/f04", **part)["KeyCount"]
        )
        assert behind == 2
        none = await asked(app, lambda c: c.list_objects_v2(MaxKeys=0, **part))
        assert (none["KeyCount"], none["IsTruncated"]) == (0, False)


async def test_long_answers_are_made_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[bool]()
    page = s3_answers.page

    def watched(*words: Any) -> Any:
        made.append(threading.current_thread() is threading.main_thread())
        return page(*words)

    monkeypatch.setattr(s3_answers, "page", watched)
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    async with door(tmp_path) as app:
        for prefix in ("tiny/v1/", "tiny/"):
            assert await asked(app, lambda c: listing(c, Prefix=prefix))  # noqa: B023
    assert made == [False, False]


async def test_a_listing_of_version_1(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    async with door(tmp_path) as app:

        def listed(client: Any, **more: Any) -> list[str]:
            pages = client.get_paginator("list_objects").paginate(
                Bucket="acme", Prefix="tiny/v1/", PaginationConfig={"PageSize": 1}, **more
            )
            rows = [(p.get("Contents", []), p.get("CommonPrefixes", [])) for p in pages]
            return [
                one.get("Key", one.get("Prefix")) for both in rows for kind in both for one in kind
            ]

        assert await asked(app, listed) == sorted(f"tiny/v1/{path}" for path in FILES)
        assert await asked(app, lambda c: listed(c, Delimiter="/")) == [
            "tiny/v1/config.json", "tiny/v1/empty.txt", "tiny/v1/model.safetensors", "tiny/v1/sub/",
        ]  # fmt: skip
        acl = await asked(app, lambda c: c.get_bucket_acl(Bucket="acme"))
        assert acl == "NotImplemented"


async def test_heads_ranges_and_conditions(tmp_path: Path) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    key: dict[str, Any] = {"Bucket": "acme", "Key": "tiny/v1/model.safetensors"}
    async with door(tmp_path) as app:
        head = await asked(app, lambda c: c.head_object(**key))
        assert head["ContentLength"] == len(WEIGHTS)
        assert head["ETag"].endswith('-1"')

        def body(**more: Any) -> Callable[[Any], bytes]:
            return lambda c: c.get_object(**key, **more)["Body"].read()

        assert await asked(app, body(Range="bytes=5-9")) == WEIGHTS[5:10]
        assert await asked(app, body(Range="bytes=-4")) == WEIGHTS[-4:]
        assert await asked(app, body(IfMatch=head["ETag"])) == WEIGHTS
        assert await asked(app, body(IfMatch='"other"')) == "PreconditionFailed"
        assert await asked(app, body(IfNoneMatch=head["ETag"])) == "304"
        assert await asked(app, body(IfModifiedSince=head["LastModified"])) == "304"
        assert await asked(app, body(Range="bytes=9999999-")) == "InvalidRange"
        assert await asked(app, body(PartNumber=1)) == WEIGHTS
        assert await asked(app, body(PartNumber=2)) == "InvalidPartNumber"
        url = f"http://{app.listeners.door_addresses['s3_listen']}/acme/tiny/v1/model.safetensors"
        async with aiohttp.ClientSession() as session:
            for condition, found in (('"other"', WEIGHTS), (head["ETag"], WEIGHTS[5:])):
                resumed = {"Range": "bytes=5-", "If-Range": condition}
                async with session.get(url, headers=resumed) as answer:
                    assert await answer.read() == found
            async with session.get(url, headers={"Range": "bytes=9999999-"}) as answer:
                assert answer.headers["Content-Range"] == f"bytes */{len(WEIGHTS)}"
        said = await asked(
            app, lambda c: c.get_object_attributes(**key, ObjectAttributes=["ObjectSize"])
        )
        assert said["ObjectSize"] == len(WEIGHTS)


async def test_refusals(tmp_path: Path) -> None:
    for ref, files in (("acme/tiny:v1", FILES), ("secret/tiny:v1", {"a": b"secret"})):
        folder = make_model(tmp_path / ref.partition("/")[0], files)
        push(tmp_path / "origin", folder, ref)
    more = {"client_namespaces": "acme", "token_key_file": write_key(tmp_path / "token.key")}
    async with door(tmp_path, **more) as app:
        assert (await pull(app, "secret/tiny:v1"))["event"] == "done"

        def get(bucket: str, key: str) -> Callable[[Any], Any]:
            return lambda c: c.get_object(Bucket=bucket, Key=key)["Body"].read()

        (secret,) = app.store.models()
        assert await asked(app, get("secret", "tiny/v1/a")) == "AccessDenied"
        assert await asked(app, get("acme", f"tiny/@{secret.digest}/a")) == "NoSuchKey"
        assert (
            await asked(app, get("secret", "tiny/v1/a"), token(Scope.PULL, "secret")) == b"secret"
        )
        assert await asked(app, get("secret", "tiny/v1/a"), "made.up") == "AccessDenied"
        assert await asked(app, get("acme", "tiny/v1/none")) == "NoSuchKey"
        assert await asked(app, get("acme", "tiny/v9/config.json")) == "NoSuchKey"
        assert await asked(app, get("acme", "tiny")) == "NoSuchKey"
        assert await asked(app, get("acme", "tiny/v1/../../secret/tiny/v1/a")) == "NoSuchKey"
        assert await asked(app, get("_not.a.namespace", "x/y/z")) == "NoSuchBucket"
        found = await asked(app, lambda c: [b["Name"] for b in c.list_buckets()["Buckets"]])
        assert found == ["acme"]  # only what the caller may see
        put = await asked(app, lambda c: c.put_object(Bucket="acme", Key="tiny/v1/x", Body=b"x"))
        assert put == "MethodNotAllowed"
        gone = await asked(app, lambda c: c.delete_object(Bucket="acme", Key="tiny/v1/a"))
        assert gone == "MethodNotAllowed"


KEY = {"Key": "tiny/v1/config.json"}


@pytest.mark.parametrize(
    ("call", "more"),
    [
        ("get_object_tagging", KEY), ("get_object_acl", KEY), ("get_object_retention", KEY),
        ("get_object_legal_hold", KEY), ("list_parts", KEY | {"UploadId": "1"}), ("get_bucket_tagging", {}),
        ("get_public_access_block", {}), ("list_object_versions", {}),
    ],
)  # fmt: skip
async def test_what_no_model_has_is_said_so(
    tmp_path: Path, call: str, more: dict[str, str]
) -> None:
    """A question about an object isn't answered with its bytes."""
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    async with door(tmp_path) as app:
        found = await asked(app, lambda c: getattr(c, call)(Bucket="acme", **more))
        assert found == "NotImplemented"


async def test_bytes_go_out_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    reads = HeldReads(monkeypatch)
    async with door(tmp_path) as app:
        getting = asyncio.gather(
            asked(
                app,
                lambda c: c.get_object(Bucket="acme", Key="tiny/v1/model.safetensors")[
                    "Body"
                ].read(),
            )
        )
        await reads.until_begun()
        assert not getting.done()
        reads.let_go.set()
        (found,) = await getting
        assert found == WEIGHTS


async def test_a_failed_pull_breaks_the_body_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client must never take a part for the whole."""
    push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    blobs = tmp_path / "origin/p2pcache/v1/blobs"
    (large,) = (path for path in blobs.iterdir() if path.stat().st_size == len(WEIGHTS))
    large.write_bytes(WEIGHTS[:1_000_000] + bytes(2_000_000))
    async with door(tmp_path) as app, aiohttp.ClientSession() as session:
        url = f"http://{app.listeners.door_addresses['s3_listen']}/acme/tiny/v1/model.safetensors"
        with pytest.raises(aiohttp.ClientError):
            async with session.get(url, raise_for_status=True) as answer:
                await answer.read()


async def test_beyond_loopback_it_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="s3_listen"):
        async with agent(tmp_path, s3_listen="0.0.0.0:0"):
            pass


def counted(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """One entry for each call of a method from now on."""
    original, calls = getattr(kind, name), list[str]()

    def call(*words: Any, **more: Any) -> Any:
        calls.append(name)
        return original(*words, **more)

    monkeypatch.setattr(kind, name, call)
    return calls


async def test_many_ranges_ask_storage_for_the_tag_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(
        tmp_path / "origin",
        make_model(tmp_path / "m", {"w.bin": bytes(range(200))}),
        "acme/tiny:v1",
    )
    asked = counted(monkeypatch, OriginRepo, "get_tag")
    published = counted(monkeypatch, Store, "publish")
    how = {"origin": (tmp_path / "origin").as_uri(), "s3_listen": "127.0.0.1:0"}
    async with agent(tmp_path, **how) as app:
        url = f"http://{app.listeners.door_addresses['s3_listen']}/acme/tiny/v1/w.bin"
        async with aiohttp.ClientSession() as session:
            for byte in range(20):
                async with session.get(url, headers={"Range": f"bytes={byte}-{byte}"}) as answer:
                    assert await answer.read() == bytes([byte])
            assert len(asked) <= 2
            assert len(published) <= 2
            (model,) = app.store.models()
            assert app.store.published_path(Ref.parse("acme/tiny:v1"), model.digest)
            await app.downloads.evict(model.digest, 0.0)
            async with session.get(url) as answer:  # at once: it comes back, and is shown again
                assert await answer.read() == bytes(range(200))
            while not app.store.published_path(Ref.parse("acme/tiny:v1"), model.digest):
                await asyncio.sleep(0.01)  # the client has its last byte a little sooner
