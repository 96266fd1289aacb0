"""An agent takes no model of a namespace that isn't signed as it requires."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from p2pcache.agent.trust.required_signatures import parse_required
from p2pcache.core.format.layout import Layout
from p2pcache.core.format.manifest import encode
from p2pcache.errors import NotAllowed, NotFound, UsageError
from p2pcache.ids import Ref
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.signatures.in_origin import add_signature
from p2pcache.io.signatures.keyless import Identity, Keyless
from p2pcache.io.signatures.library import Signer, sha256_of, sign
from tests.agent.doors.test_hub import door, endpoint
from tests.agent.kit import agent, client, events, make_model, pull, push
from tests.io.signatures.signing_kit import ISSUER, NAME, make_key, make_token, private_sigstore
from tests.tracker.kit import tracker

FILES = {"config.json": b"{}", "w.bin": b"weights"}


def signed(tmp: Path, key: Path | Keyless, layout: Layout, namespace: str = "acme") -> str:
    signer = key if isinstance(key, Keyless) else Signer(key)
    bundle = sign(layout.digest, {name: sha256_of(tmp / "m" / name) for name in FILES}, signer)
    add_signature(
        OriginRepo(open_origin((tmp / "origin").as_uri())), namespace, layout.digest, bundle
    )
    return bundle


async def test_no_byte_comes_before_the_signature(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    stranger, _ = make_key(tmp_path, "stranger")
    layout = push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    push(tmp_path / "origin", tmp_path / "m", "free/tiny:v1")
    how = {"origin": (tmp_path / "origin").as_uri(), "require_signature": f"acme={public}"}
    async with door(tmp_path, **how) as app:
        for ref in ("acme/tiny:v1", f"acme/tiny@blake3:{layout.digest}"):
            refused = await pull(app, ref)
            assert refused["code"] == 4, refused
            assert f"expected {public}, it has no signature" in refused["message"]
        assert app.store.models() == []
        assert not app.downloads.swarms
        signed(tmp_path, private, layout, namespace="other")
        signed(tmp_path, stranger, layout)
        assert "it has 1 signature of others" in (await pull(app, "acme/tiny:v1"))["message"]
        async with aiohttp.ClientSession(endpoint(app)) as session:
            async with session.get("/acme/tiny/resolve/v1/w.bin") as answer:
                assert answer.status == 403
                assert str(public) in answer.headers["X-Error-Message"]
        assert (await pull(app, "free/tiny:v1"))["event"] == "done"
        assert (await pull(app, "acme/tiny:v1"))[
            "code"
        ] == 4  # that all bytes are here is no reason
        assert not (app.store.root / "models/acme").exists()
        signed(tmp_path, private, layout)
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"


async def test_a_node_starts_its_pods_while_storage_is_away(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    _, other = make_key(tmp_path, "other")
    layout = push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    signed(tmp_path, private, layout)
    how = {"origin": (tmp_path / "origin").as_uri(), "require_signature": f"*={public}"}
    async with agent(tmp_path, **how) as app:
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
    async with agent(tmp_path, require_signature=f"*={public}") as app:
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
    async with agent(tmp_path, **(how | {"require_signature": f"*={other}"})) as app:
        assert (await pull(app, "acme/tiny:v1"))["code"] == 4  # the key was changed


async def test_an_identity_may_sign_in_place_of_a_key(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    layout = push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    signed(tmp_path, private, layout)
    who = f"identity:{NAME} issuer:{ISSUER}"
    how = {"origin": (tmp_path / "origin").as_uri()}
    with private_sigstore(tmp_path) as trust:
        how |= {"require_signature": f"acme={who}", "sigstore_trust_config": str(trust)}
        stranger = Keyless(trust, make_token(tmp_path, "somebody@company.example"))
        signed(tmp_path, stranger, layout)
        async with agent(tmp_path, **how) as app:
            refused = await pull(app, "acme/tiny:v1")
            assert refused["code"] == 4
            assert f"expected {who}, it has 2 signatures of others" in refused["message"]
            signed(tmp_path, Keyless(trust, make_token(tmp_path)), layout)
            assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
    # Neither the Sigstore nor the storage is there; the file says whom to trust.
    del how["origin"]
    async with agent(tmp_path, **how) as app:
        assert (await pull(app, "acme/tiny:v1"))["event"] == "done"
    how["require_signature"] = f"acme={public},acme=identity:other issuer:{ISSUER}"
    async with agent(tmp_path, **how) as app:
        assert (await pull(app, "acme/tiny:v1"))[
            "code"
        ] == 8  # what is kept is of nobody who counts now


async def test_members_ask_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> list[str]:
        raise NotAllowed("this node has no credentials for the storage")

    monkeypatch.setattr("p2pcache.agent.downloads.resolver.read_signatures", refused)
    private, public = make_key(tmp_path)
    layout = push(tmp_path / "origin", make_model(tmp_path / "m", FILES), "Acme/Tiny:v1")
    signed(tmp_path, private, layout)
    async with tracker(tmp_path / "origin") as asked:
        where = f"http://{asked.address}"
        async with agent(tmp_path, tracker=where, require_signature=f"acme={public}") as app:
            assert (await pull(app, "acme/tiny:v1"))["event"] == "done"


async def test_a_push_moves_no_tag_without_a_signature(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    (tmp_path / "origin").mkdir()
    (tmp_path / "elsewhere").mkdir()
    layout = push(tmp_path / "elsewhere", make_model(tmp_path / "m", FILES), "acme/tiny:v1")
    how = {"origin": (tmp_path / "origin").as_uri(), "require_signature": f"acme={public}"}
    files = {name: sha256_of(tmp_path / "m" / name) for name in FILES}
    async with agent(tmp_path, **how) as app, client(app) as session:

        async def offered() -> dict[str, Any]:
            async with session.post("/v1/manifests", data=encode(layout.manifest)) as answer:
                for one in (await answer.json())["missing"]:
                    data = FILES[one["path"]]
                    url = f"/v1/blobs/{layout.digest}/{one['blob']}"
                    async with session.put(url, data=data) as put:
                        assert put.status == 200
            body = {"ref": "acme/tiny:v1", "digest": layout.digest}
            async with session.post("/v1/push", json=body) as answer:
                return (await events(answer))[-1]

        assert (await offered())["code"] == 4
        repo = OriginRepo(open_origin((tmp_path / "origin").as_uri()))
        ref = Ref.parse("acme/tiny:v1")
        with pytest.raises(NotFound):
            repo.get_tag(ref)
        body = {"ref": "acme/tiny:v1", "digest": layout.digest}
        body["signature"] = sign(layout.digest, files, Signer(private))
        async with session.post("/v1/signatures", json=body) as answer:
            assert answer.status == 200
        assert (await offered())["event"] == "done"
        assert repo.get_tag(ref).digest == layout.digest
        async with session.get("/v1/signatures?ref=acme/tiny:v1") as answer:
            assert (await answer.json())["signatures"] == [body["signature"]]
        body["signature"] = "nonsense"
        async with session.post("/v1/signatures", json=body) as answer:
            assert answer.status == 400


def test_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = parse_required("Acme=/a.pub, acme=/b.pub,*=/c.pem")
    assert found == {"acme": [Path("/a.pub"), Path("/b.pub")], "*": [Path("/c.pem")]}
    monkeypatch.setenv("HOME", "/home/u")
    assert parse_required("a=~/a.pub") == {"a": [Path("/home/u/a.pub")]}
    who = parse_required(f"a=identity:{NAME} issuer:{ISSUER}")
    assert who == {"a": [Identity(NAME, ISSUER)]}
    for wrong in ("a=identity:x", "acme", "acme=", "=x", "a/b=/x", "../x=/y", "a:b=/c", "a=~b/c"):
        with pytest.raises(UsageError, match="require_signature"):
            parse_required(wrong)
