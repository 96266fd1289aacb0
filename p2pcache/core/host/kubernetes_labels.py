"""Which labels a Kubernetes Node carries for the models that are complete on it.

The key of `team/llama:v3` is `models.p2pcache.io/team__llama__v3`, its value the first 16 hex
digits of the manifest's digest: `Exists` finds the nodes that have the tag, `In` those that have
exactly these bytes.
"""

import re
from collections.abc import Iterable, Mapping

from blake3 import blake3

from p2pcache.core.host.settings import MAX_LABELS
from p2pcache.ids import Ref

PREFIX = "models.p2pcache.io/"
VALUE_DIGITS = 16  # 64 bits of the digest: enough to tell models apart, and short for people
_SEPARATOR = "__"
_MAX_NAME = 63  # Kubernetes' limit for the part after the prefix
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


def label_key(ref: Ref) -> str:
    """The label's key for a tag: the same on every node, and different for different tags.

    A ref that can't be written as a label (too long, an end that isn't a letter or digit, or parts
    that hold the separator) becomes `h-` and 32 digits of its BLAKE3.
    """
    plain = _SEPARATOR.join(ref.tag_key)
    split = plain.split(_SEPARATOR)
    # A `_` beside the separator would be ambiguous: `a_` + `b` or `a` + `_b`.
    clear = "___" not in plain and split == list(ref.tag_key)
    if clear and len(plain) <= _MAX_NAME and _NAME.fullmatch(plain):
        return PREFIX + plain
    return f"{PREFIX}h-{blake3('/'.join(ref.tag_key).encode()).hexdigest()[:32]}"


def wanted_labels(models: Iterable[tuple[Ref, str]]) -> dict[str, str]:
    """The labels of complete models, at most `MAX_LABELS`; ref and digest (hex) of each, the most important first."""
    labels: dict[str, str] = {}
    for ref, digest in models:
        if len(labels) >= MAX_LABELS:
            break
        labels.setdefault(label_key(ref), digest[:VALUE_DIGITS])
    return labels


def changes(present: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The JSON merge patch (RFC 7386) from all labels of the Node to the wanted ones: None for those to remove.

    Those with another prefix are left alone.
    """
    new = {key: value for key, value in wanted.items() if present.get(key) != value}
    gone = {key: None for key in present if key.startswith(PREFIX) and key not in wanted}
    return {**new, **gone}
