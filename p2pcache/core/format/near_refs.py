"""What somebody may have meant by a ref that names nothing."""

import difflib
import re
from collections.abc import Iterable

from p2pcache.ids import DEFAULT_NAMESPACE, Ref

MOST_TAGS = 8  # in a message
MOST_NAMES = 3


def hint(ref: Ref, known: Iterable[Ref]) -> str:
    """What to add to "there is no such model": the tags that its name has, else names that are spelt alike.

    Args:
        ref: that names nothing.
        known: refs that name something and may be told; one that is this ref lies in this cache alone.

    Returns:
        For example `; team/llama has the tags v1, v2`; "": nothing is near.
    """
    tags: dict[str, set[str]] = {}
    for each in known:
        tags.setdefault(_name(each), set()).add(each.tag)
    mine = _name(ref)
    if ref.tag in tags.get(mine, ()):
        return "; this cache has it, from another storage or from before it was deleted there (`p2pcache ls`)"
    if mine in tags:
        found = sorted(tags[mine], key=_natural)
        near = difflib.get_close_matches(ref.tag, found, n=1)
        shown = [*near, *(tag for tag in found if tag not in near)][:MOST_TAGS]
        more = f" and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
        word = "the tag" if len(found) == 1 else "the tags"
        return f"; {mine} has {word} {', '.join(shown)}{more}"
    # A long namespace alone makes all of its names alike.
    alike = (name for name in sorted(tags) if _alike(name.rpartition("/")[2], ref.name))
    near = difflib.get_close_matches(mine, alike, n=MOST_NAMES, cutoff=0.7)
    # Somebody may have left the namespace out, or got it wrong.
    near += [
        name for name in sorted(tags) if name.rpartition("/")[2] == ref.name and name not in near
    ]
    if not near:
        return ""
    meant = [f"{name}:{_tag(ref.tag, tags[name])}" for name in near[:MOST_NAMES]]
    return f"; did you mean {' or '.join(meant)}?"


def hint_within(ref: Ref, known: Iterable[Ref]) -> str:
    """As `hint`, of the ref's own namespace alone: who may ask for the ref may know its neighbours, and no others."""
    return hint(ref, (each for each in known if each.namespace == ref.namespace))


def _name(ref: Ref) -> str:
    return ref.name if ref.namespace == DEFAULT_NAMESPACE else f"{ref.namespace}/{ref.name}"


def _alike(one: str, other: str) -> bool:
    return bool(difflib.get_close_matches(one, [other], cutoff=0.6))


def _tag(wanted: str, tags: set[str]) -> str:
    return wanted if wanted in tags else max(tags, key=_natural)


def _natural(text: str) -> list[tuple[int, str]]:
    """A key that sorts v9 before v10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
