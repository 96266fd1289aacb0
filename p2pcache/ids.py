"""Names: refs, digests, node ids. Parse and format; no behaviour."""

import re
from typing import NamedTuple, Self

from p2pcache.errors import UsageError

DIGEST_BYTES = 32  # BLAKE3-256
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
SCHEME = "p2pcache://"  # before a ref, where something else could stand, such as the address of other storage
MAX_SHOWN = 400  # characters of a bad ref that a message repeats; a good one has 361 at most


NAME_CHARS, TAG_CHARS = 80, 128  # at most
_NAME = rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS - 1}}}"
_TAG_TEXT = rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{TAG_CHARS - 1}}}"
_REF = re.compile(
    rf"(?:(?P<namespace>{_NAME})/)?(?P<name>{_NAME})"
    rf"(?::(?P<tag>{_TAG_TEXT}))?"
    r"(?:@blake3:(?P<digest>[0-9a-f]{64}))?"
)
_TAG = re.compile(_TAG_TEXT)
_HEX = re.compile(r"[0-9a-f]{64}")

RunIndex = int
"""A run of one model: its place in the order of the manifest, from 0."""

RunSet = int
"""A set of runs of one model: bit i stands for run i. `p2pcache.core.bitset` works on such sets."""

NodeId = int
"""An agent: 63 bits, drawn once for a cache directory. `format_node` writes it for people."""


class Ref(NamedTuple):
    """`[namespace/]name[:tag][@blake3:HEX]`; where there is a digest, it decides.

    Namespace and name are in lower case, whatever was typed; the tag is as it was typed.
    """

    namespace: str
    name: str
    tag: str
    digest: str | None = None  # 64 hex digits

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a ref as a person types it.

        Raises:
            UsageError: with the grammar and an example.
        """
        match = _REF.fullmatch(text)
        if match is None:
            shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
            raise UsageError(
                f"not a model ref: {shown!r}; expected [namespace/]name[:tag][@blake3:HEX], "
                f"for example team/llama:v3, with names of up to {NAME_CHARS} characters and tags of up to {TAG_CHARS}"
            )
        return cls(
            (match["namespace"] or DEFAULT_NAMESPACE).lower(),
            match["name"].lower(),
            match["tag"] or DEFAULT_TAG,
            match["digest"],
        )

    @property
    def tag_key(self) -> tuple[str, str, str]:
        """What names a tag record: (namespace, name, tag)."""
        return (self.namespace, self.name, self.tag)

    @property
    def full_name(self) -> str:
        """`[namespace/]name`; the default namespace is left out."""
        space = "" if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/"
        return f"{space}{self.name}"

    @property
    def short(self) -> str:
        """As short as it parses back: the default namespace is left out, the tag is not."""
        return f"{self.full_name}:{self.tag}"

    @property
    def full(self) -> str:
        """As `str`, always with its tag: a key of records that last."""
        return self.short + (f"@blake3:{self.digest}" if self.digest else "")

    def __str__(self) -> str:
        """As short as it parses back: beside a digest the default tag is left out, since nobody may have typed it."""
        plain = self.digest is not None and self.tag == DEFAULT_TAG
        return f"{self.full_name}@blake3:{self.digest}" if plain else self.full


class Wanted(NamedTuple):
    """What somebody wants to pull: a ref, and the model of a hub that its tag stands for ("": of none)."""

    ref: Ref
    url: str = ""


def parse_wanted(text: str) -> Wanted:
    """Parse a ref, or `hf://ORG/REPO[@REVISION]`, which is the tag REVISION (`main`) of ORG/REPO.

    Raises:
        UsageError: as `Ref.parse`; or a revision that can't be a tag.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        return Wanted(Ref.parse(text))
    repo, _, revision = rest.partition("@")
    org, slash, name = repo.partition("/")
    tag = revision or "main"
    if scheme != "hf":
        # The rest may hold a password or a signature.
        raise UsageError(
            f"not a model ref: {f'{scheme[:MAX_SHOWN]}://...'!r}; to pull what lies elsewhere, first give it a name: "
            "`p2pcache import URL team/llama:v3`"
        )
    if not slash or not _TAG.fullmatch(tag):
        raise UsageError(
            f"not a model of a hub: {text[:MAX_SHOWN]!r}; expected hf://ORG/REPO[@REVISION], and a revision without a "
            "slash"
        )
    return Wanted(Ref.parse(f"{org}/{name}:{tag}"), hub_url(repo, tag))


def hub_url(repo: str, revision: str) -> str:
    """The URL of a model of a hub; `repo`: ORG/REPO."""
    return f"hf://{repo}@{revision}"


def ref_of_hub(url: str) -> str:
    """ORG/REPO:REVISION, with its capitals, of what `hub_url` gave."""
    return url.removeprefix("hf://").replace("@", ":")


def spelled(text: str) -> str:
    """The `[namespace/]name` of a good ref as it is written, with its capitals; a default namespace is left out."""
    name = text.partition("@")[0].partition(":")[0]
    space, _, rest = name.rpartition("/")
    return rest if space.lower() == DEFAULT_NAMESPACE else name


def as_written(text: str) -> str:
    """A ref as people write it: as `str` of it, with the capitals of its name.

    Raises:
        UsageError: as `Ref.parse`.
    """
    ref = Ref.parse(text)
    return f"{spelled(text)}{str(ref).removeprefix(ref.full_name)}"


def is_spelling_of(text: str, ref: Ref) -> bool:
    """Whether a text writes this ref's name, with or without capitals."""
    return text.isascii() and text.lower() == ref.full_name


def is_ref(text: str) -> bool:
    """Whether a text can name a model."""
    try:
        Ref.parse(text)
    except UsageError:
        return False
    return True


def is_digest(text: str) -> bool:
    """Whether `text` is a digest in its one spelling: 64 lower-case hex digits."""
    return _HEX.fullmatch(text) is not None


def format_node(node: NodeId) -> str:
    """A node id (63-bit int inside, so that ties break the same everywhere) as 16 hex digits."""
    return f"{node:016x}"


def parse_node(text: str) -> NodeId:
    """The inverse of `format_node`.

    Raises:
        UsageError: not 16 hex digits.
    """
    if re.fullmatch(r"[0-7][0-9a-f]{15}", text) is None:
        raise UsageError(f"not a node id: {text!r}; expected 16 hex digits")
    return int(text, 16)
