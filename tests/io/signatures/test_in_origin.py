"""Signatures lie beside the manifest, each namespace's apart."""

from pathlib import Path

import pytest

from p2pcache.errors import UsageError
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.signatures.in_origin import MAX_BUNDLES, add_signature, read_signatures

DIGEST = "ab" * 32


def test_the_latest_come_first_and_the_oldest_go(tmp_path: Path) -> None:
    repo = OriginRepo(open_origin(tmp_path.as_uri()))
    assert read_signatures(repo, "acme", DIGEST) == []
    for number in [*range(MAX_BUNDLES + 2), 5]:
        add_signature(repo, "acme", DIGEST, f'{{"n": {number}}}')
    kept = [f'{{"n": {number}}}' for number in range(MAX_BUNDLES + 1, 1, -1)]
    assert read_signatures(repo, "acme", DIGEST) == kept
    assert read_signatures(repo, "other", DIGEST) == []
    assert read_signatures(repo, "acme", "cd" * 32) == []


def test_another_signer_in_between_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, rival = (OriginRepo(open_origin(tmp_path.as_uri())) for _ in range(2))
    put, interrupted = repo.origin.put, list[int]()

    def slow(*words: object, **more: object) -> object:
        if not interrupted:
            interrupted.append(1)
            add_signature(rival, "acme", DIGEST, '{"of": "rival"}')
        return put(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(repo.origin, "put", slow)
    add_signature(repo, "acme", DIGEST, '{"of": "us"}')
    assert read_signatures(repo, "acme", DIGEST) == ['{"of": "us"}', '{"of": "rival"}']


@pytest.mark.parametrize(
    "bundle", ["", "text", "{}\n{}", "{\r}", "{" + "x" * 800_000, '{"\u00fc"}']
)
def test_what_is_no_bundle_isnt_stored(tmp_path: Path, bundle: str) -> None:
    repo = OriginRepo(open_origin(tmp_path.as_uri()))
    with pytest.raises(UsageError):
        add_signature(repo, "acme", DIGEST, bundle)
    assert list(tmp_path.rglob(DIGEST)) == []
