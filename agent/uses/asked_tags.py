"""The tags by which clients asked for models that aren't complete yet."""

from p2pcache.ids import Ref


class AskedTags:
    """Generations of asked tags, by digest of the model that they meant, to be set when it is complete.

    The client that asked for the tag may have left by then. Engines do so: they read a model's configuration by its
    tag, then load the model by its digest.
    """

    def __init__(self) -> None:
        """None yet."""
        self._asked: dict[str, dict[Ref, int]] = {}

    def remember_tag(self, ref: Ref, digest: str, generation: int) -> None:
        """Remember that a tag means this model."""
        if ref.digest is None:
            self._asked.setdefault(digest, {})[ref] = generation

    def forget_tag(self, ref: Ref, digest: str) -> None:
        """Set a tag at the end no more: it was removed."""
        self._asked.get(digest, {}).pop(ref, None)

    def with_digests(self) -> list[tuple[Ref, str]]:
        """Each tag, with the digest of the model that it meant."""
        return [(ref, digest) for digest, names in self._asked.items() for ref in names]

    def take_tags(self, digest: str) -> dict[Ref, int]:
        """All of a model, which are forgotten."""
        return self._asked.pop(digest, {})
