"""Signatures at the origin: `p2pcache/v1/signatures/<namespace>/<manifest hex>`, one Sigstore bundle a line.

Each namespace has its own, so that whoever may push to one can't take away the signatures of another.
"""

import base64
import json

from p2pcache.errors import Conflict, NotFound, UsageError
from p2pcache.io.origins.base import ABSENT, NoContainer
from p2pcache.io.origins.repo import ROOT, OriginRepo

MAX_BUNDLE_BYTES = 700_000  # fits a request to an agent; about 2,500 files
MAX_BUNDLES = 8  # of one model in one namespace; the oldest goes
MAX_BYTES = MAX_BUNDLES * (MAX_BUNDLE_BYTES + 1)
_TRIES = 20  # a put races only with other signers


def check_bundle(bundle: str) -> None:
    """Refuse what can't be stored: a text of several lines, or a long one.

    Raises:
        UsageError: it is one.
    """
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise UsageError(
            f"a signature of {len(bundle):,} bytes is over the limit of {MAX_BUNDLE_BYTES:,}: too many files"
        )
    if not bundle.startswith("{") or "\n" in bundle or "\r" in bundle or not bundle.isascii():
        raise UsageError("not a signature: expected a Sigstore bundle, which is JSON on one line")


def subject_of(digest: str) -> str:
    """What a signature of a model names: its manifest."""
    return f"p2pcache/blake3/{digest}"


def check_subject(bundle: str, digest: str) -> None:
    """Refuse a bundle that says itself that it is of something else; nothing is proved.

    Raises:
        UsageError: it does, or it isn't a signature.
    """
    check_bundle(bundle)
    try:
        payload = json.loads(base64.b64decode(json.loads(bundle)["dsseEnvelope"]["payload"]))
        names = [str(one["name"]) for one in payload["subject"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError("not a signature: expected a Sigstore bundle of a statement") from None
    if subject_of(digest) not in names:
        raise UsageError(
            f"the signature is of {', '.join(names)[:200]}, not of blake3:{digest[:12]}"
        )


def read_signatures(repo: OriginRepo, namespace: str, digest: str) -> list[str]:
    """The bundles of a model, the latest first; nothing about them is proved."""
    return _read(repo, _key(namespace, digest))[0]


def add_signature(repo: OriginRepo, namespace: str, digest: str, bundle: str) -> None:
    """Store one more bundle of a model.

    Raises:
        UsageError: it isn't one, or is too large.
        Conflict: others store some all the time.
        P2PCacheError: the origin can't be read or written.
    """
    check_bundle(bundle)
    key, origin = _key(namespace, digest), repo.origin
    for _ in range(_TRIES):
        known, version = _read(repo, key)
        if bundle in known:
            return
        data = "".join(f"{one}\n" for one in [bundle, *known][:MAX_BUNDLES]).encode()
        expect = ABSENT if version is None else version
        try:
            origin.put(key, data, expect=expect if origin.conditional_put else None)
        except Conflict:
            continue
        return
    raise Conflict("the model's signatures change faster than we can write them; try again")


def split(data: bytes) -> list[str]:
    """The bundles of stored bytes; what can't be one is passed over."""
    lines = data.decode("ascii", "replace").splitlines()
    return [line for line in lines if line.startswith("{")][:MAX_BUNDLES]


def _read(repo: OriginRepo, key: str) -> tuple[list[str], str | None]:
    try:
        data, version = repo.origin.get(key, limit=MAX_BYTES)
    except NoContainer:
        raise
    except NotFound:
        return [], None
    return split(data), version


def _key(namespace: str, digest: str) -> str:
    return f"{ROOT}/signatures/{namespace}/{digest}"
