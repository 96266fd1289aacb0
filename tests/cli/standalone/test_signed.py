"""Signing and checking by the command, with the library's own command as an opponent."""

import json
from pathlib import Path

import pytest

from p2pcache.errors import IntegrityError, NotAllowed, NotFound
from tests.cli.conftest import Run
from tests.io.signatures.signing_kit import (
    ISSUER,
    NAME,
    library,
    make_certificates,
    make_key,
    make_token,
    private_sigstore,
)


def test_what_the_command_signs_the_library_checks(run: Run, model: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path)
    _, stranger = make_key(tmp_path, "stranger")
    assert isinstance(run("show", "team/m:v1", "--signature").exception, NotFound)
    said = run("sign", "Team/M:v1", "--key", private)
    assert said.exit_code == 0, said.exception
    tree = Path(run("pull", "team/m:v1").stdout.strip())
    assert said.stdout == f"Team/M:v1@blake3:{tree.name[1:]}\n"
    shown = run("show", "team/m:v1", "--signature").stdout
    (tmp_path / "model.sig").write_text(shown)
    how = ("--signature", tmp_path / "model.sig", "--public_key", public)
    assert library("verify", "key", tree, *how) == 0
    good = run("verify", "team/m:v1", "--signature", "--key", stranger, "--key", public)
    assert good.exit_code == 0, good.exception
    assert "; signed by one of " in good.stderr
    bad = run("verify", "team/m:v1", "--signature", "--key", stranger)
    assert isinstance(bad.exception, NotAllowed)
    assert f"1 signature of others; expected one of {stranger}" in str(bad.exception)
    run("sign", "team/m:v1", "--key", private)
    document = json.loads(run("show", "team/m:v1", "--signature", "--json").stdout)
    assert len(document["signatures"]) == 2  # each signature has dice of its own


def test_a_signature_comes_to_a_site_before_its_model(
    run: Run, model: Path, tmp_path: Path
) -> None:
    private, _ = make_key(tmp_path)
    run("sign", "team/m:v1", "--key", private)
    run("sign", "team/m:v1", "--key", private)
    digest = Path(run("pull", "team/m:v1").stdout.strip()).name[1:]
    shown = run("show", "team/m:v1", "--signature").stdout
    file = tmp_path / "m.sig"
    file.write_text(shown)
    far = ("--origin", (tmp_path / "far").as_uri())
    (tmp_path / "far").mkdir()
    other = run("sign", f"team/m@blake3:{'0' * 64}", "--signature", file, *far)
    assert other.exit_code == 1
    assert "not of blake3:000000000000" in str(other.exception)
    said = run("sign", f"team/m@blake3:{digest}", "--signature", file, *far)
    assert said.exit_code == 0, said.exception
    document = run("show", f"team/m@blake3:{digest}", "--signature", *far)
    assert document.stdout == shown
    assert run("sign", "team/m:v1", "--signature", file).exit_code == 0  # known already
    for wrong in (b"", b"{}\n", b"\xff\xff\n", b'{"dsseEnvelope": {"payload": "e30="}}\n'):
        file.write_bytes(wrong)
        assert run("sign", "team/m:v1", "--signature", file).exit_code


def test_a_push_can_sign(run: Run, model: Path, tmp_path: Path) -> None:
    key, certificate, authority = make_certificates(tmp_path, "ours")
    how = ("--sign", key, "--certificate", certificate, "--chain", authority)
    assert run("push", model, "team/m:v2", *how).exit_code == 0
    run("pull", "team/m:v2")
    said = run("verify", "team/m:v2", "--signature", "--key", authority)
    assert said.exit_code == 0, said.exception
    run("pull", "team/m:v1")
    assert run("verify", "team/m:v1", "--signature", "--key", authority).exit_code == 1


def test_who_has_no_key_signs_with_a_token(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SIGSTORE_ID_TOKEN", raising=False)
    with private_sigstore(tmp_path) as trust:
        how = ("--keyless", "--sigstore-trust-config", trust)
        nobody = run("push", model, "team/m:v2", *how)
        assert "no identity token to sign with" in str(nobody.exception)
        monkeypatch.setenv("P2PCACHE_SIGSTORE_TRUST_CONFIG", str(trust))
        monkeypatch.setenv("P2PCACHE_IDENTITY_TOKEN_FILE", str(make_token(tmp_path)))
        assert run("push", model, "team/m:v2", "--keyless").exit_code == 0
        signed = run("sign", "team/m:v1", "--keyless")
        assert signed.exit_code == 0, signed.exception
    # The Sigstore is away: all that is needed to check lies in the signature and in the file.
    monkeypatch.delenv("P2PCACHE_IDENTITY_TOKEN_FILE")
    for ref in ("team/m:v1", "team/m:v2"):
        run("pull", ref)
        who = ("--identity", NAME, "--issuer", ISSUER)
        said = run("verify", ref, "--signature", *who)
        assert said.exit_code == 0, said.exception
        said = run("verify", ref, "--signature", "--identity", "other", "--issuer", ISSUER)
        assert isinstance(said.exception, NotAllowed)
        wanted = f"1 signature of others; expected one of identity:other issuer:{ISSUER}"
        assert wanted in str(said.exception)


def test_a_manifest_that_lies_about_a_sha256_isnt_signed(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = make_key(tmp_path)
    run("push", model, "team/m:v3", "--sha256")
    run("pull", "team/m:v3")
    monkeypatch.setattr("p2pcache.io.signatures.library.sha256_of", lambda _: bytes(32))
    assert isinstance(run("sign", "team/m:v3", "--key", private).exception, IntegrityError)
    assert isinstance(run("show", "team/m:v3", "--signature").exception, NotFound)


@pytest.mark.parametrize(
    "words",
    [("verify", "m", "--signature"), ("verify", "m", "--key", "x"), ("push", ".", "m", "--certificate", "x"),
     ("sign", "m"), ("sign", "m", "--key", "x", "--chain", "y"), ("sign", "m", "--key", "x", "--signature", "y"),
     ("sign", "m", "--signature", "x", "--certificate", "y"), ("sign", "m", "--signature", "x", "--keyless"),
     ("sign", "m", "--key", "x", "--keyless"), ("push", ".", "m", "--sign", "x", "--keyless"),
     ("sign", "m", "--keyless", "--certificate", "y"), ("verify", "m", "--signature", "--identity", "x"),
     ("verify", "m", "--issuer", "x"), ("verify", "m", "--identity", "x", "--issuer", "y")],
)  # fmt: skip
def test_options_that_make_no_sense_alone(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2
