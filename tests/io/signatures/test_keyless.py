"""Keyless signatures, by a private Sigstore that we didn't write: @sigstore/mock's authority, log and timestamps."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from p2pcache.errors import NotFound, Unreachable, UsageError
from p2pcache.io.signatures import keyless
from p2pcache.io.signatures.keyless import Identity, Keyless, parse_identity
from p2pcache.io.signatures.library import Keys, Signer, check_signer, sign
from tests.io.signatures.signing_kit import (
    ISSUER,
    NAME,
    library,
    make_certificates,
    make_key,
    make_token,
    private_sigstore,
)

DIGEST, OTHER = "ab" * 32, "cd" * 32
HASHES = {"config.json": sha256(b"{}").digest()}
WHO = Identity(NAME, ISSUER)


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with private_sigstore(tmp_path_factory.mktemp("sigstore")) as file:
        yield file


@pytest.fixture(scope="module")
def bundle(trust: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    token = make_token(tmp_path_factory.mktemp("token"))
    return sign(DIGEST, HASHES, Keyless(trust, token))


def test_a_signature_is_of_one_digest_and_one_identity(
    trust: Path, bundle: str, tmp_path: Path
) -> None:
    assert Keys([WHO], trust).allow(bundle, DIGEST)
    assert not Keys([WHO], trust).allow(bundle, OTHER)
    assert not Keys([Identity("somebody@company.example", ISSUER)], trust).allow(bundle, DIGEST)
    assert not Keys([Identity(NAME, "https://other.example")], trust).allow(bundle, DIGEST)
    private, public = make_key(tmp_path)
    both = Keys([public, WHO], trust)
    assert both.label == f"{public}, identity:{NAME} issuer:{ISSUER}"
    assert both.allow(bundle, DIGEST)
    assert both.allow(sign(DIGEST, HASHES, Signer(private)), DIGEST)
    assert not Keys([public]).allow(bundle, DIGEST)


def test_another_sigstore_certifies_nobody(bundle: str, tmp_path: Path) -> None:
    with private_sigstore(tmp_path) as other:
        assert not Keys([WHO], other).allow(bundle, DIGEST)


def test_a_certificate_of_another_authority_is_none(trust: Path, tmp_path: Path) -> None:
    key, certificate, authority = make_certificates(tmp_path, "ours")
    assert not Keys([WHO], trust).allow(
        sign(DIGEST, HASHES, Signer(key, certificate, (authority,))), DIGEST
    )


def _changed(document: dict[str, Any], what: str) -> None:
    """Change one part of a good bundle."""
    material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
    entry = material["tlogEntries"][0]
    if what == "payload":
        forged = base64.b64decode(envelope["payload"]).replace(DIGEST.encode(), OTHER.encode())
        envelope["payload"] = base64.b64encode(forged).decode()
    elif what == "signature":
        raw = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
        raw[-1] ^= 1
        envelope["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    elif what == "time":
        entry["integratedTime"] = str(int(entry["integratedTime"]) + 60)
    elif what == "log entry":
        body = json.loads(base64.b64decode(entry["canonicalizedBody"]))
        body["spec"]["payloadHash"]["value"] = "00" * 32
        entry["canonicalizedBody"] = base64.b64encode(json.dumps(body).encode()).decode()
    elif what == "no log":
        material["tlogEntries"] = []
    elif what == "no time":
        del entry["inclusionPromise"]
        material["timestampVerificationData"] = {}
    elif what == "certificate":
        raw = bytearray(base64.b64decode(material["certificate"]["rawBytes"]))
        raw[-1] ^= 1
        material["certificate"]["rawBytes"] = base64.b64encode(raw).decode()


@pytest.mark.parametrize(
    "what", ["payload", "signature", "time", "log entry", "no log", "no time", "certificate"]
)
def test_a_changed_bundle_is_no_signature(trust: Path, bundle: str, what: str) -> None:
    document = json.loads(bundle)
    assert Keys([WHO], trust).allow(json.dumps(document), DIGEST)
    _changed(document, what)
    assert not Keys([WHO], trust).allow(json.dumps(document), DIGEST)
    assert not Keys([WHO], trust).allow(json.dumps(document), OTHER)


def test_timestamps_alone_keep_the_time(trust: Path, bundle: str) -> None:
    document = json.loads(bundle)
    del document["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]
    assert Keys([WHO], trust).allow(json.dumps(document), DIGEST)


def test_the_librarys_own_command_checks_a_directory_with_it(
    trust: Path, bundle: str, tmp_path: Path
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/config.json").write_text("{}")
    (tmp_path / "model.sig").write_text(bundle)
    words = ("verify", "sigstore", tmp_path / "tree", "--signature", tmp_path / "model.sig")
    whose = ("--identity", NAME, "--identity_provider", ISSUER, "--trust_config", trust)
    assert library(*words, *whose) == 0
    (tmp_path / "tree/config.json").write_text("[]")
    assert library(*words, *whose) == 1


def test_a_signature_of_a_directory_alone_is_of_no_model(trust: Path, tmp_path: Path) -> None:
    tree, file = tmp_path / DIGEST, tmp_path / "model.sig"
    tree.mkdir()
    (tree / "config.json").write_text("{}")
    token = make_token(tmp_path).read_text().strip()
    words = ("sign", "sigstore", tree, "--signature", file, "--trust_config", trust)
    assert library(*words, "--identity_token", token) == 0
    assert not Keys([WHO], trust).allow(file.read_text(), DIGEST)


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyless, "_ambient", lambda: "of the cloud")
    file = tmp_path / "token"
    file.write_text(" of the file\n")
    environ = {"SIGSTORE_ID_TOKEN": "of the environment\n"}
    assert Keyless(token_file=file).token(environ) == "of the file"
    assert Keyless().token(environ) == "of the environment"
    assert Keyless().token({}) == "of the cloud"
    monkeypatch.setattr(keyless, "_ambient", lambda: None)
    assert Keyless(may_ask=True).token({}) is None
    with pytest.raises(UsageError, match="no identity token to sign with"):
        Keyless().token({})
    with pytest.raises(NotFound, match="no identity token in"):
        Keyless(token_file=tmp_path / "none").token(environ)
    file.write_text("\n")
    with pytest.raises(UsageError, match="holds no identity token"):
        Keyless(token_file=file).token(environ)


def test_a_token_of_github_actions_is_found(
    trust: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = make_token(tmp_path).read_text().strip()
    asked = list[tuple[str, str | None]]()

    class Runner(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"value": token}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Runner) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("GITHUB_ACTIONS", "true")
        monkeypatch.delenv("SIGSTORE_ID_TOKEN", raising=False)
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of the runner")
        monkeypatch.setenv(
            "ACTIONS_ID_TOKEN_REQUEST_URL", f"http://127.0.0.1:{server.server_port}/?a=b"
        )
        made = sign(DIGEST, HASHES, Keyless(trust))
        server.shutdown()
    assert asked == [("/?a=b&audience=sigstore", "bearer of the runner")]
    assert Keys([WHO], trust).allow(made, DIGEST)


def test_what_cant_sign_is_said_at_once_and_without_the_token(trust: Path, tmp_path: Path) -> None:
    late = int(time.time()) - 60
    for claims in ({"exp": late}, {"aud": "other"}):
        token = make_token(tmp_path, **claims)
        with pytest.raises(UsageError, match=r"can't sign by Sigstore: .*oken") as found:
            sign(DIGEST, HASHES, Keyless(trust, token))
        assert token.read_text().strip() not in str(found.value)
    token = make_token(tmp_path)
    with pytest.raises(NotFound, match="no trust configuration"):
        check_signer(Keyless(tmp_path / "none", token))
    for text in ("{}", "[]", "no JSON", "{" * 5000, "\xff"):
        (tmp_path / "wrong.json").write_text(text, "latin-1")
        with pytest.raises(UsageError, match="is no trust configuration"):
            check_signer(Keyless(tmp_path / "wrong.json", token))
        with pytest.raises(UsageError, match="is no trust configuration"):
            Keys([WHO], tmp_path / "wrong.json")


def test_a_sigstore_that_doesnt_answer_is_unreachable(trust: Path, tmp_path: Path) -> None:
    document = json.loads(trust.read_text())
    document["signingConfig"]["oidcUrls"][0]["url"] = "http://127.0.0.1:9"
    (tmp_path / "away.json").write_text(json.dumps(document))
    with pytest.raises(Unreachable, match="can't sign by Sigstore"):
        check_signer(Keyless(tmp_path / "away.json", make_token(tmp_path)))


def test_identities_as_text() -> None:
    assert parse_identity("/etc/team.pub") is None
    assert parse_identity(str(WHO)) == WHO
    assert parse_identity("identity:a@b.example  issuer:https://x") == Identity(
        "a@b.example", "https://x"
    )
    for wrong in (
        "identity:", "identity:a", "identity:a issuer:", "identity:a by:https://x", "identity:a b issuer:https://x",
        "identity: issuer:https://x", "identity:a issuer:https://x issuer:https://y",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="expected 'identity:NAME issuer:URL'"):
            parse_identity(wrong)
