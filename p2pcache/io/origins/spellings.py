"""How the name of a model is written: as the first push had it. The key of a model is in lower case.

p2pcache/v1/names/<namespace>/<name>    the spelling as text, only where it has capitals
"""

from p2pcache.errors import Conflict, NotAllowed, NotFound
from p2pcache.ids import Ref, is_spelling_of
from p2pcache.io.origins.base import ABSENT, NoContainer
from p2pcache.io.origins.retry import Retrying

MAX_BYTES = 200  # a namespace and a name have 161


def read_spelling(origin: Retrying, root: str, ref: Ref) -> str | None:
    """The spelling of a ref's name that is stored; None: there is none, or none that is ours.

    Raises:
        P2PCacheError: the origin can't be read.
    """
    try:
        data, _ = origin.get(_key(root, ref), limit=MAX_BYTES)
    except NoContainer:
        raise
    except NotFound:
        return None
    text = data.decode("ascii", "replace")
    return text if is_spelling_of(text, ref) else None


def claim_spelling(
    origin: Retrying, root: str, ref: Ref, spelling: str, *, force: bool = False
) -> None:
    """Let a name be written in this way, unless it is written in another one already.

    Args:
        origin: where tags are.
        root: of the layout there.
        ref: names the model.
        spelling: from `ids.spelled`.
        force: also if it is.

    Raises:
        Conflict: the name is there, written otherwise.
        P2PCacheError: the origin can't be read or written.
    """
    known = read_spelling(origin, root, ref)
    if known is None and spelling == ref.full_name:
        return
    if known is None and _has_tags(origin, root, ref):
        known = ref.full_name
    if known == spelling:
        return
    if known is not None and not force:
        raise Conflict(
            f"this model is there already, written {known}: push to {known}:{ref.tag}, or with --force to "
            "change how it is written"
        )
    create = known is None and origin.conditional_put
    origin.put(_key(root, ref), spelling.encode(), expect=ABSENT if create else None)


def _key(root: str, ref: Ref) -> str:
    return f"{root}/names/{ref.namespace}/{ref.name}"


def _has_tags(origin: Retrying, root: str, ref: Ref) -> bool:
    try:
        return any(True for _ in origin.list(f"{root}/tags/{ref.namespace}/{ref.name}/"))
    except NotAllowed:  # a client that may write may not be allowed to list
        return False
