"""`require_signature`: models of some namespaces need somebody's signature, before a byte of them comes or is shown.

Whatever makes a model one of this node asks here first: pulls, loads, warms and doors as they begin a download, pushes
before they upload. Good signatures are kept in the cache, so that a node starts its pods while storage is away.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from p2pcache.core.units import counted
from p2pcache.errors import NotAllowed, UsageError
from p2pcache.ids import Ref
from p2pcache.io import pools
from p2pcache.io.config import whole_path
from p2pcache.io.signatures.in_origin import MAX_BUNDLE_BYTES
from p2pcache.io.signatures.keyless import Identity, parse_identity
from p2pcache.io.signatures.library import Keys

_log = logging.getLogger(__name__)
EVERY = "*"  # stands for all namespaces that have no keys of their own
MAX_KEPT = 1000  # signatures in the cache; the oldest go

Read = Callable[[str, str], Awaitable[list[str]]]
"""The stored signatures of a namespace for a digest."""


class RequiredSignatures:
    """Which namespaces need a signature, and of whom."""

    def __init__(self, setting: str, trust_config: str, cache_dir: Path, read: Read) -> None:
        """Read the keys.

        Args:
            setting: NAMESPACE=WHO, separated by commas; several of a namespace: one of them is enough.
            trust_config: the file of the Sigstore that certifies identities; "": the public one.
            cache_dir: of the agent.
            read: asks tracker or storage.

        Raises:
            UsageError, NotFound, NotAllowed: the setting or a key can't be used.
            Unreachable: the public Sigstore doesn't answer.
        """
        trust = Path(trust_config) if trust_config else None
        self._keys = {name: Keys(who, trust) for name, who in parse_required(setting).items()}
        self._folder = cache_dir / "signatures"
        self._read = read
        self._good: set[tuple[str, str]] = set()

    async def need(self, ref: Ref, digest: str) -> None:
        """Check that the model may be taken under this name.

        Raises:
            NotAllowed: its namespace needs a signature that it hasn't.
            P2PCacheError: the signatures can't be read.
        """
        keys = self._keys.get(ref.namespace) or self._keys.get(EVERY)
        if keys is None or (ref.namespace, digest) in self._good:
            return
        kept = await pools.STEPS.run(self._kept, ref.namespace, digest)
        if not await self._first_good(keys, kept, ref.namespace, digest):
            stored = await self._read(ref.namespace, digest)
            if not await self._first_good(keys, stored, ref.namespace, digest):
                raise _unsigned(ref, digest, keys, len(stored))

    async def _first_good(
        self, keys: Keys, bundles: list[str], namespace: str, digest: str
    ) -> bool:
        for bundle in bundles:
            if await pools.WORK.run(keys.allow, bundle, digest):
                self._good.add((namespace, digest))
                await pools.STEPS.run(self._keep, namespace, digest, bundle)
                return True
        return False

    def _kept(self, namespace: str, digest: str) -> list[str]:
        try:
            with self._path(namespace, digest).open("rb") as file:
                return [file.read(MAX_BUNDLE_BYTES).decode("ascii", "replace")]
        except OSError:
            return []

    def _keep(self, namespace: str, digest: str, bundle: str) -> None:
        path = self._path(namespace, digest)
        if self._kept(namespace, digest) == [bundle]:
            return
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            temporary = path.with_name(f"{path.name}.new")
            temporary.write_text(bundle)
            temporary.replace(path)
            others = sorted(self._folder.iterdir(), key=lambda one: one.stat().st_mtime)
            for old in others[:-MAX_KEPT]:
                old.unlink(missing_ok=True)
        except OSError as error:  # the next start asks for it again
            _log.warning("can't keep a signature in the cache: %s", error.strerror)

    def _path(self, namespace: str, digest: str) -> Path:
        return self._folder / f"{namespace}@{digest}"


def parse_required(setting: str) -> dict[str, list[Path | Identity]]:
    """The key files and identities of each namespace.

    Raises:
        UsageError: not NAMESPACE=FILE or NAMESPACE=identity:NAME issuer:URL, or no namespace can be called so.
    """
    found: dict[str, list[Path | Identity]] = {}
    for part in filter(None, (one.strip() for one in setting.split(","))):
        namespace, equals, text = part.partition("=")
        name, who = namespace.strip(), text.strip()
        if not equals or not who:
            raise UsageError(f"require_signature: expected NAMESPACE=FILE, not {part!r}")
        if name != EVERY:
            name = _namespace(name)
        found.setdefault(name, []).append(_signer(who))
    return found


def _signer(text: str) -> Path | Identity:
    try:
        return parse_identity(text) or Path(whole_path(text))
    except UsageError as error:
        raise UsageError(f"require_signature: {error}") from None


def _namespace(text: str) -> str:
    wrong = UsageError(f"require_signature: no namespace can be called {text!r}")
    try:
        ref = Ref.parse(f"{text}/x")
    except UsageError:
        raise wrong from None
    if (ref.namespace, ref.name) != (text.lower(), "x"):
        raise wrong
    return ref.namespace


def _unsigned(ref: Ref, digest: str, keys: Keys, others: int) -> NotAllowed:
    have = f"it has {counted(others, 'signature')} of others" if others else "it has no signature"
    return NotAllowed(
        f"{ref.short} blake3:{digest[:12]} isn't signed as namespace {ref.namespace} requires (require_signature): "
        f"expected {keys.label}, {have}; let its owner run: p2pcache sign {ref.short} --key FILE, or --keyless"
    )
