"""How many bytes the copies of a namespace's models may take in the pool."""

from collections.abc import Mapping

from p2pcache.core.pool.settings import MAX_QUOTAS
from p2pcache.core.units import format_bytes, parse_size
from p2pcache.errors import UsageError
from p2pcache.ids import Ref


def parse_quotas(text: str) -> dict[str, int]:
    """Bytes by namespace, of `NAMESPACE=SIZE,...`; "": there are none.

    Raises:
        UsageError: it has another form, or names a namespace twice.
    """
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = (part.strip() for part in item.partition("="))
        try:
            if not equals:
                raise UsageError("expected NAMESPACE=SIZE")
            namespace = Ref.parse(f"{name}/x").namespace
            if namespace in found:
                raise UsageError("this namespace is named twice")
            found[namespace] = parse_size(size)
        except UsageError as error:
            raise UsageError(f"namespace_quotas: {item[:100]!a}: {error}") from None
    if len(found) > MAX_QUOTAS:
        raise UsageError(f"namespace_quotas: more than {MAX_QUOTAS:,} namespaces")
    return found


def refusal(
    quotas: Mapping[str, int], namespace: str, held_bytes: int, coming_bytes: int, what: str = "this copy"
) -> str:  # fmt: skip
    """Why a copy may not come, for people; "": it may.

    Args:
        quotas: bytes by namespace; one that isn't named has none.
        namespace: of the model.
        held_bytes: of all copies of the namespace's models, with those under way.
        coming_bytes: of the new copy; 0: nothing comes.
        what: comes, in words.
    """
    quota = quotas.get(namespace)
    if quota is None or not coming_bytes or held_bytes + coming_bytes <= quota:
        return ""
    return (
        f"the quota of namespace {namespace} is {format_bytes(quota)} in the whole pool: its models take "
        f"{format_bytes(held_bytes)}, and {what} would take {format_bytes(coming_bytes)} more; remove copies "
        "(`p2pcache ls --cluster`, then `p2pcache rm` or `p2pcache evict` on their nodes), or raise namespace_quotas "
        "at the tracker"
    )
