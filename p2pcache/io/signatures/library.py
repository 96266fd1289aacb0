"""Signing and checking, by the OpenSSF model-signing library (extra `signing`).

A signature covers a statement of the library's own form: the SHA-256 of each file, and as its subject the digest of our
manifest. Agents hold to the subject, which covers each chunk, before a byte comes. Everybody else can check a pulled
directory with the library alone. The name of a directory has no slash, so a signature that the library's own command
made of some directory never has such a subject.
"""

import contextlib
import hashlib
import json
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pcache.errors import NotAllowed, P2PCacheError, Unreachable, UsageError
from p2pcache.io.signatures.in_origin import check_bundle, subject_of
from p2pcache.io.signatures.keyless import Identity, Keyless, read_file

if TYPE_CHECKING:
    from model_signing.manifest import Manifest

MAX_KEY_BYTES = 1 << 20  # a bundle of authorities' certificates; a key has 200
_IGNORED = (".git", ".gitattributes", ".github", ".gitignore")  # by the library, unless told
_AWAY = {"ConnectionError", "Timeout", "DownloadError"}  # errors of several libraries; none is ours
_FILES = {
    "method": "files",
    "hash_type": "sha256",
    "allow_symlinks": False,
    "ignore_paths": _IGNORED,
}


class Signer(NamedTuple):
    """Who signs: a private key on a NIST curve, and maybe the certificate of it."""

    key: Path
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()


def check_signer(signer: Signer | Keyless) -> None:
    """Notice before hours of hashing that this signer can't sign.

    Raises:
        P2PCacheError: as `sign`.
    """
    with _library(_cant(signer), UsageError):
        _signing_by(signer)


def sign(digest: str, sha256: Mapping[str, bytes], signer: Signer | Keyless) -> str:
    """Sign a model.

    Args:
        digest: of its manifest.
        sha256: of each file's true bytes, by path.
        signer: who signs.

    Returns:
        A Sigstore bundle: JSON on one line.

    Raises:
        UsageError: the library isn't here, the key or token can't be used, or the model has too many files.
        NotFound, NotAllowed: the key can't be read.
        Unreachable: the Sigstore doesn't answer.
    """
    with _library(_cant(signer), UsageError):
        how = _signing_by(signer)
        how.set_hashing_config(_Given(lambda: _statement(digest, sha256)))
        with tempfile.TemporaryDirectory(prefix="p2pcache-") as folder:
            path = Path(folder) / "model.sig"
            how.sign(folder, path)
            # As ASCII: logs sign with a dash that isn't.
            bundle = json.dumps(json.loads(path.read_text()))
    check_bundle(bundle)
    return bundle


def _signing_by(signer: Signer | Keyless) -> Any:
    from model_signing import signing

    how = signing.Config()
    if isinstance(signer, Keyless):
        _check_trust(signer.trust_config)
        token = signer.token()
        return how.use_sigstore_signer(identity_token=token, trust_config=signer.trust_config)
    _check_key(signer.key)
    if signer.certificate is None:
        return how.use_elliptic_key_signer(private_key=signer.key)
    return how.use_certificate_signer(
        private_key=signer.key,
        signing_certificate=signer.certificate,
        certificate_chain=signer.chain,
    )


def _check_key(path: Path) -> None:
    """Refuse a private key of another kind, which the library meets with an error of its code.

    Raises:
        UsageError: it isn't on an elliptic curve.
        NotFound, NotAllowed: it can't be read.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(read_file(path, f"key file {path}", MAX_KEY_BYTES), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UsageError(f"can't sign with {path}: it isn't on the curve P-256, P-384 or P-521")


def _cant(signer: Signer | Keyless) -> str:
    return (
        "can't sign by Sigstore" if isinstance(signer, Keyless) else f"can't sign with {signer.key}"
    )


class Keys:
    """Who may sign: public keys and certificates of authorities, as PEM files, and identities."""

    def __init__(self, who: Sequence[Path | Identity], trust_config: Path | None = None) -> None:
        """Read them.

        Args:
            who: files and identities.
            trust_config: of the Sigstore that certifies; None: the public one, which is asked now.

        Raises:
            UsageError: the library isn't here, or a file is none of these.
            NotFound, NotAllowed: a file can't be read.
            Unreachable: the public Sigstore doesn't answer.
        """
        self._checks = [
            _identified(one, trust_config) if isinstance(one, Identity) else _check_by(one)
            for one in who
        ]
        self.label = ", ".join(map(str, who))  # which ones, for people

    def allow(self, bundle: str, digest: str) -> bool:
        """Whether one of them signed this model."""
        return any(self._holds(check, bundle, digest) for check in self._checks)

    def _holds(self, check: "_Check", bundle: str, digest: str) -> bool:
        try:
            check_bundle(bundle)
            with _library("", NotAllowed):
                check(bundle, digest)
        except P2PCacheError:
            return False
        return True


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


_Check = Callable[[str, str], None]
"""Verify that a bundle is of a digest; raises the library's errors."""


def _check_by(path: Path) -> _Check:
    wrong = f"{path} is neither a public key on a NIST curve nor certificates, in PEM"
    data = read_file(path, f"key file {path}", MAX_KEY_BYTES)
    if len(data) > MAX_KEY_BYTES:
        raise UsageError(wrong)
    with _library(wrong, UsageError):
        from model_signing import verifying

        config = verifying.Config()
        if b"BEGIN CERTIFICATE" in data:
            config.use_certificate_verifier(certificate_chain=[path])
        else:
            config.use_elliptic_key_verifier(public_key=path)
    return _verify_by(config)


def _identified(who: Identity, trust_config: Path | None) -> _Check:
    hint = "" if trust_config else "; name a trust configuration in sigstore_trust_config"
    with _library(f"can't check signatures by {who}{hint}", UsageError):
        from model_signing import verifying

        _check_trust(trust_config)
        config = verifying.Config()
        config.use_sigstore_verifier(
            identity=who.identity, oidc_issuer=who.issuer, trust_config=trust_config
        )
    return _verify_by(config)


def _verify_by(config: Any) -> _Check:
    lock = threading.Lock()  # the library's verifier isn't made for several threads

    def check(bundle: str, digest: str) -> None:
        with lock, tempfile.TemporaryDirectory(prefix="p2pcache-") as folder:
            config.set_hashing_config(_Given(lambda: _statement(digest, None)))
            file = Path(folder) / "model.sig"
            file.write_text(bundle)
            config.verify(Path(folder), file)

    return check


def _check_trust(path: Path | None) -> None:
    """Refuse a trust configuration that isn't one.

    Raises:
        UsageError: it isn't.
        NotFound, NotAllowed: it can't be read.
    """
    if path is None:
        return
    data = read_file(path, f"trust configuration {path}", MAX_KEY_BYTES)
    from sigstore.models import ClientTrustConfig

    with _library(
        f"{path} is no trust configuration (ClientTrustConfig) of a Sigstore", UsageError
    ):
        if len(data) > MAX_KEY_BYTES:
            raise ValueError("it is too long")
        ClientTrustConfig.from_json(data.decode())


class _Given:
    """A hashing configuration of the library that hashes nothing: what it would find is known."""

    def __init__(self, make: Callable[[], "Manifest"]) -> None:
        self._make = make

    def hash(self, *_: object, **__: object) -> "Manifest":
        return self._make()

    def add_ignored_paths(self, **_: object) -> None:
        """What is ignored is given, too."""


def _statement(digest: str, sha256: Mapping[str, bytes] | None) -> "Manifest":
    """What is signed of a model; without `sha256` it equals every statement with the same subject."""
    from model_signing import manifest

    kind: Any = manifest.SerializationType.from_args(_FILES)

    class Statement(manifest.Manifest):  # type: ignore[misc]
        def __eq__(self, other: object) -> bool:
            if not isinstance(other, manifest.Manifest):
                return False
            same = self.model_name == other.model_name
            return bool(same and (sha256 is None or super().__eq__(other)))

        __hash__ = None  # type: ignore[assignment]

    items = [
        kind.new_item(path, _digest(value))
        for path, value in (sha256 or {}).items()
        if PurePosixPath(path).parts[0] not in _IGNORED
    ]
    return Statement(subject_of(digest), items, kind)


def _digest(value: bytes) -> Any:
    from model_signing.hashing import hashing

    return hashing.Digest("sha256", value)


@contextlib.contextmanager
def _library(what: str, kind: type[P2PCacheError]) -> Any:
    """Turn the library's errors into ours: it has none of its own, and passes on those of what it stands on."""
    try:
        yield
    except P2PCacheError:
        raise
    except ImportError as error:
        raise UsageError(
            f"signatures need the model-signing library, install p2pcache[signing] ({error})"
        ) from None
    except Exception as error:  # noqa: BLE001
        causes = [error, *_causes(error)]
        lines = dict.fromkeys(" ".join(str(one).split()) or type(one).__name__ for one in causes)
        names = {kind.__name__ for one in causes for kind in type(one).__mro__}
        raise (Unreachable if names & _AWAY else kind)(
            f"{what}: {': '.join(lines)[:300]}"
        ) from None


def _causes(error: BaseException) -> list[BaseException]:
    """What an error comes from, and what that comes from; the libraries below say least at the top."""
    cause = error.__cause__
    return [] if cause is None else [cause, *_causes(cause)]
