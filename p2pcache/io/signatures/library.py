"""Signing and checking, by the OpenSSF model-signing library (extra `signing`).

A signature covers a statement of the library's own form: the SHA-256 of each file, and as its subject the digest of our
manifest. Agents hold to the subject, which covers each chunk, before a byte comes. Everybody else can check a pulled
directory with the library alone. The name of a directory has no slash, so a signature that the library's own command
made of some directory never has such a subject.
"""

import contextlib
import hashlib
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from p2pcache.errors import NotAllowed, NotFound, P2PCacheError, UsageError
from p2pcache.io.signatures.in_origin import check_bundle, subject_of

if TYPE_CHECKING:
    from model_signing.manifest import Manifest

MAX_KEY_BYTES = 1 << 20  # a bundle of authorities' certificates; a key has 200
_IGNORED = (".git", ".gitattributes", ".github", ".gitignore")  # by the library, unless told
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


def sign(digest: str, sha256: Mapping[str, bytes], signer: Signer) -> str:
    """Sign a model.

    Args:
        digest: of its manifest.
        sha256: of each file's true bytes, by path.
        signer: who signs.

    Returns:
        A Sigstore bundle: JSON on one line.

    Raises:
        UsageError: the library isn't here, the key can't be used, or the model has too many files.
    """
    with _library(f"can't sign with {signer.key}", UsageError):
        from model_signing import signing

        if signer.certificate is None:
            how = signing.Config().use_elliptic_key_signer(private_key=signer.key)
        else:
            how = signing.Config().use_certificate_signer(
                private_key=signer.key, signing_certificate=signer.certificate,
                certificate_chain=signer.chain,
            )  # fmt: skip
        how.set_hashing_config(_Given(lambda: _statement(digest, sha256)))
        with tempfile.TemporaryDirectory(prefix="p2pcache-") as folder:
            path = Path(folder) / "model.sig"
            how.sign(folder, path)
            bundle = path.read_text()
    check_bundle(bundle)
    return bundle


class Keys:
    """Who may sign: public keys and certificates of authorities, as PEM files."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Read them.

        Raises:
            UsageError: the library isn't here, or a file is neither.
            NotFound, NotAllowed: a file can't be read.
        """
        self._checks = [_check_by(path) for path in files]
        self.label = ", ".join(str(path) for path in files)  # which ones, for people

    def allow(self, bundle: str, digest: str) -> bool:
        """Whether one of them signed this model."""
        return any(self._holds(check, bundle, digest) for check in self._checks)

    def _holds(self, check: "_Check", bundle: str, digest: str) -> bool:
        try:
            check_bundle(bundle)
            with _library("", NotAllowed):
                check(bundle, digest)
        except (NotAllowed, UsageError):
            return False
        return True


def sha256_of(path: Path) -> bytes:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


_Check = Callable[[str, str], None]
"""Verify that a bundle is of a digest; raises the library's errors."""


def _check_by(path: Path) -> _Check:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no key file {path}") from None
    except OSError as error:
        raise NotAllowed(f"can't read key file {path}: {error.strerror}") from None
    wrong = f"{path} is neither a public key on a NIST curve nor certificates, in PEM"
    if len(data) > MAX_KEY_BYTES:
        raise UsageError(wrong)
    with _library(wrong, UsageError):
        from model_signing import verifying

        config = verifying.Config()
        if b"BEGIN CERTIFICATE" in data:
            config.use_certificate_verifier(certificate_chain=[path])
        else:
            config.use_elliptic_key_verifier(public_key=path)

    lock = threading.Lock()  # the library's verifier isn't made for several threads

    def check(bundle: str, digest: str) -> None:
        with lock, tempfile.TemporaryDirectory(prefix="p2pcache-") as folder:
            config.set_hashing_config(_Given(lambda: _statement(digest, None)))
            file = Path(folder) / "model.sig"
            file.write_text(bundle)
            config.verify(Path(folder), file)

    return check


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
        line = " ".join(str(error).split())[:300] or type(error).__name__
        raise kind(f"{what}: {line}") from None
