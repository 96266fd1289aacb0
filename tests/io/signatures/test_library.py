"""Signatures bind a key to our digest, and to the files for everybody else."""

import base64
import json
from hashlib import sha256
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from p2pcache.errors import NotFound, UsageError
from p2pcache.io.signatures.library import Keys, Signer, sha256_of, sign
from tests.io.signatures.signing_kit import library, make_certificates, make_key

DIGEST, OTHER = "ab" * 32, "cd" * 32
FILES = {"config.json": b"{}", "sub/w.bin": b"weights", ".gitattributes": b"*.bin lfs"}
HASHES = {path: sha256(data).digest() for path, data in FILES.items()}


def make_tree(folder: Path) -> Path:
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        assert sha256_of(folder / path) == HASHES[path]
    return folder


def test_a_signature_is_of_one_digest_and_one_key(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    _, stranger = make_key(tmp_path, "stranger")
    bundle = sign(DIGEST, HASHES, Signer(private))
    assert Keys([public]).allow(bundle, DIGEST)
    assert Keys([stranger, public]).allow(bundle, DIGEST)
    assert not Keys([public]).allow(bundle, OTHER)
    assert not Keys([stranger]).allow(bundle, DIGEST)


def test_the_librarys_own_command_checks_a_directory_with_it(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    tree, file = make_tree(tmp_path / "tree"), tmp_path / "model.sig"
    file.write_text(sign(DIGEST, HASHES, Signer(private)))
    words = ("verify", "key", tree, "--signature", file, "--public_key", public)
    assert library(*words) == 0
    (tree / "sub/w.bin").write_bytes(b"weightz")
    assert library(*words) == 1


def test_a_signature_of_a_directory_alone_is_of_no_model(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    file = tmp_path / "model.sig"
    for name in (f"@{DIGEST}", DIGEST):
        tree = make_tree(tmp_path / name)
        assert library("sign", "key", tree, "--signature", file, "--private_key", private) == 0
        assert not Keys([public]).allow(file.read_text(), DIGEST)


def test_a_changed_statement_is_none(tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    bundle = json.loads(sign(OTHER, HASHES, Signer(private)))
    payload = base64.b64decode(bundle["dsseEnvelope"]["payload"]).decode()
    forged = payload.replace(OTHER, DIGEST)
    assert forged != payload
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(forged.encode()).decode()
    assert not Keys([public]).allow(json.dumps(bundle), DIGEST)
    honest = sign(OTHER, HASHES, Signer(private))
    both = json.loads(honest)  # two envelopes: whichever is checked must be the one that counts
    both["dsse_envelope"] = bundle["dsseEnvelope"]
    assert not Keys([public]).allow(json.dumps(both), DIGEST)


@pytest.mark.parametrize(
    "bundle",
    ["", "{}", "[]", "nonsense", '{"verificationMaterial": {}}', "{" * 5000, '{"a":' * 5000, "{\n}",
     '{"mediaType": "x", "verificationMaterial": {"publicKey": {"hint": "a"}}, "dsseEnvelope": 5}',
     "{" + " " * 800_000 + "}"],
)  # fmt: skip
def test_nonsense_is_no_signature(tmp_path: Path, bundle: str) -> None:
    _, public = make_key(tmp_path)
    _, _, authority = make_certificates(tmp_path, "ours")
    assert not Keys([public, authority]).allow(bundle, DIGEST)


def test_certificates_of_an_authority(tmp_path: Path) -> None:
    key, certificate, authority = make_certificates(tmp_path, "ours")
    _, _, other = make_certificates(tmp_path, "theirs")
    bundle = sign(DIGEST, HASHES, Signer(key, certificate, (authority,)))
    assert Keys([authority]).allow(bundle, DIGEST)
    assert not Keys([authority]).allow(bundle, OTHER)
    assert not Keys([other]).allow(bundle, DIGEST)
    tree, file = make_tree(tmp_path / "tree"), tmp_path / "model.sig"
    file.write_text(bundle)
    how = ("--signature", file, "--certificate_chain", authority)
    assert library("verify", "certificate", tree, *how) == 0


def test_what_cant_be_used_is_said_at_once(tmp_path: Path) -> None:
    private, _ = make_key(tmp_path)
    with pytest.raises(NotFound, match="no key file"):
        Keys([tmp_path / "none"])
    with pytest.raises(UsageError, match="neither a public key"):
        Keys([private])
    with pytest.raises(NotFound, match="no key file"):
        sign(DIGEST, HASHES, Signer(tmp_path / "none"))
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UsageError, match=r"can't sign with .*text: "):
        sign(DIGEST, HASHES, Signer(tmp_path / "text"))
    many = {f"model-{number:06}.safetensors": bytes(32) for number in range(4000)}
    with pytest.raises(UsageError, match="too many files"):
        sign(DIGEST, many, Signer(private))


def test_a_key_on_no_curve_is_called_so(tmp_path: Path) -> None:
    """The library ends in an error of its code, which was the whole message."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (tmp_path / "rsa").write_bytes(key.private_bytes(*pem, serialization.NoEncryption()))
    with pytest.raises(UsageError, match=r"rsa: it isn't on the curve P-256, P-384 or P-521"):
        sign(DIGEST, HASHES, Signer(tmp_path / "rsa"))
