"""How the hub's clients call things in their cache.

models--<org>--<name>/refs/<revision>      the commit that a revision means, as text
models--<org>--<name>/snapshots/<commit>/  the files of a commit
models--<org>--<name>/trees/<commit>.json  their sizes and ids

Standard library only: the command's fast path uses it.
"""

from collections.abc import Mapping

COMMIT_DIGITS = 40  # clients take shortcuts only for ids of exactly this length
MAIN = "main"  # the revision of whoever names none
SNAPSHOTS, REFS, TREES = "snapshots", "refs", "trees"
_LATEST = "latest"


def commit_of(digest: str) -> str:
    """The commit of a model: 40 hex digits of its digest."""
    return digest[:COMMIT_DIGITS]


def repo_folder(name: str) -> str:
    """The folder of a model.

    Args:
        name: `[namespace/]name`, as it is written.

    Returns:
        The folder's name; "" for a name that no hub has, and that two models could share.
    """
    if "--" in name or ".." in name:
        return ""
    return "--".join(["models", *name.split("/")])


def revisions(tags: Mapping[str, str]) -> dict[str, str]:
    """The commit of each revision. The revision `main` is the tag `main`, or else `latest`.

    Args:
        tags: the digest that each tag of one model's name means.
    """
    shown = {tag: commit_of(digest) for tag, digest in tags.items()}
    if _LATEST in shown:
        shown.setdefault(MAIN, shown[_LATEST])
    return shown
