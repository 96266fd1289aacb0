"""Compile caches as models: the key for which one is valid, its name, and the note inside it.

A compile cache holds programs (`.so`, cubins, Python source) that an engine will run. To storage and swarm it is a
model like any other. A model is a compile cache if the note `NOTE` is among its files. Only a model with
the note can be restored, and it is refused outside the namespaces that the operator named.
"""

from typing import Annotated

import msgspec
from blake3 import blake3

from p2pcache.core.format.manifest import Manifest
from p2pcache.errors import IntegrityError, NotAllowed, UsageError
from p2pcache.ids import Ref

NOTE = ".p2pcache-compile-cache.json"
MAX_NOTE_BYTES = 16 << 20  # 100,000 files at 100 characters each
MAX_TEXT = 200  # characters of a value; the longest seen, a GPU's name, has 40
MAX_EXTRA = 32
SETTING = "compile_cache_namespaces"
_FORMAT = 1

_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT, pattern=r"\A[ -~]*\Z")]
_Name = Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[a-z][a-z0-9_]*\Z")]
_Stamp = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]  # some time before the year 2116


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All that must be equal for compiled code to be used again. An empty field: there is no such part."""

    engine: _Text
    """The distribution that compiles: vllm, sglang, torch."""
    engine_version: _Text
    torch: _Text
    triton: _Text
    python: _Text
    """Implementation and version whose ABI compiled extensions have: cpython-311."""
    host: _Text
    """Machine and a digest of the processor's features: host code is compiled for exactly these."""
    libc: _Text
    device: _Text
    """Name of the GPU, or cpu."""
    capability: _Text
    driver: _Text
    cuda: _Text
    model: _Text
    """Digest of the model."""
    extra: Annotated[dict[_Name, _Text], msgspec.Meta(max_length=MAX_EXTRA)] = {}
    """Other values that change the code, such as tensor_parallel_size."""

    @property
    def digest(self) -> str:
        """64 hex digits; equal for equal keys, whatever the order of the extras."""
        return blake3(msgspec.json.encode(self, order="sorted")).hexdigest()


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `NOTE`."""

    format: int
    key: Key
    mtimes: dict[str, _Stamp]
    """ns since 1970 of each file: build tools compare them."""


FIELDS = tuple(field for field in Key.__struct_fields__ if field != "extra")


def make_key(values: dict[str, str], extra: dict[str, str]) -> Key:
    """A checked key.

    Args:
        values: every field but `extra`, by name.
        extra: other values that change the code.

    Raises:
        UsageError: an unknown field, or a value that is too long or not printable ASCII.
    """
    try:
        return msgspec.convert({**values, "extra": extra}, Key)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a key of a compile cache: {error}") from None


def cache_ref(model: Ref, key: Key, namespace: str = "") -> Ref:
    """The name of the cache of a model: `NAMESPACE/NAME-cc:KEY`.

    Args:
        model: the model that was compiled.
        key: for which the cache is valid.
        namespace: of the cache; "": the model's.

    Raises:
        UsageError: the model's name leaves no room for the suffix, or a bad namespace.
    """
    return Ref.parse(f"{namespace or model.namespace}/{model.name}-cc:{key.digest}")


def encode_note(key: Key, mtimes: dict[str, int]) -> bytes:
    """The note's bytes."""
    return msgspec.json.encode(Note(_FORMAT, key, mtimes), order="sorted")


def decode_note(data: bytes) -> Note:
    """The inverse of `encode_note`, for untrusted bytes.

    Raises:
        IntegrityError: not a note of this format.
    """
    try:
        if len(data) > MAX_NOTE_BYTES:
            raise IntegrityError(f"{NOTE} is over {MAX_NOTE_BYTES >> 20} MiB")
        note = msgspec.json.decode(data, type=Note)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise IntegrityError(f"{NOTE} makes no sense: {error}; save the cache again") from None
    if note.format != _FORMAT:
        raise IntegrityError(
            f"{NOTE} has format {note.format}, this program knows {_FORMAT}; update p2pcache"
        )
    return note


def differences(ours: Key, theirs: Key) -> list[str]:
    """The differences of two keys, one line each; [] when they are equal."""
    mine, other = msgspec.structs.asdict(ours), msgspec.structs.asdict(theirs)
    mine |= {f"extra {k}": v for k, v in mine.pop("extra").items()}
    other |= {f"extra {k}": v for k, v in other.pop("extra").items()}
    return [
        f"{name} is {mine.get(name, '')!r} here and {other.get(name, '')!r} there"
        for name in mine | other
        if mine.get(name, "") != other.get(name, "")
    ]


def is_compile_cache(manifest: Manifest) -> bool:
    """Whether a model is a compile cache: it has the note."""
    return any(file.path == NOTE for file in manifest.files)


def permit(namespaces: str, ref: Ref, whose: str) -> None:
    """Refuse a compile cache from a namespace that the operator didn't name.

    Args:
        namespaces: the setting: names, separated by commas; there is no wildcard.
        ref: of the compile cache.
        whose: the owner of the setting, for the message: "agent" or "client".

    Raises:
        NotAllowed: the namespace isn't named, or the ref has a digest, which may be of any namespace.
    """
    if ref.digest is not None:
        raise NotAllowed(
            f"{ref.short}: a compile cache holds programs and is taken by its tag only, for a digest "
            "doesn't say who pushed it; leave the digest out"
        )
    if ref.namespace not in {name.strip() for name in namespaces.split(",")}:
        raise NotAllowed(
            f"{ref.namespace}/{ref.name} is a compile cache, which holds programs, and namespace "
            f"{ref.namespace} isn't trusted with those: if all who may push there are, add it to {SETTING} "
            f"in [{whose}] (or P2PCACHE_{SETTING.upper()}) of this {whose}"
        )


def permit_programs(namespaces: str, ref: Ref, manifest: Manifest | None) -> None:
    """Refuse a model that is a compile cache from a namespace that the operator didn't name.

    Args:
        namespaces: the agent's setting.
        ref: as the client named the model.
        manifest: of the model; None: it isn't known yet, and nothing is refused.

    Raises:
        NotAllowed: as `permit`.
    """
    if manifest is not None and is_compile_cache(manifest):
        permit(namespaces, ref, "agent")
