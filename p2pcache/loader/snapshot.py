"""A model, or some of its files, as a directory: for code that opens paths itself."""

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from p2pcache.errors import NotFound, P2PCacheError
from p2pcache.ids import Ref
from p2pcache.loader.resolve import Here, connect, named


def snapshot(
    ref: str,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    agent: str | None = None,
) -> Path:
    """Let the node's agent fetch a model and name its directory, as `p2pcache pull` does.

    Args:
        ref: the model.
        include: patterns of files, or one, such as "*.json"; none: all.
        exclude: patterns of files to leave out, or one, such as "*.safetensors".
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.

    Returns:
        A directory that is complete, read-only and never changes.

    Raises:
        NotFound: no such model, no such files, or the directory isn't visible here.
        P2PCacheError: the agent's own error.
    """
    return brought(ref, include=include, exclude=exclude, agent=agent)[0]


def brought(
    ref: str,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    agent: str | None = None,
) -> tuple[Path, Ref]:
    """As `snapshot`, with the ref by its digest: a tag may move before it is asked for again."""
    wanted = Ref.parse(named(ref))
    # the letters of a pattern are patterns, too, and a "*" among them would be the whole model
    include, exclude = ([p] if isinstance(p, str) else p for p in (include, exclude))
    path, digest = fetched(connect(agent), wanted, include=include, exclude=exclude)
    return path, wanted._replace(digest=digest)


def fetched(
    here: Here, wanted: Ref, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Path, str]:
    """Through a given agent: the directory, and the digest of its model."""
    events = here.client.pull(str(wanted), include=include, exclude=exclude)
    with contextlib.closing(events):
        done = next((event for event in events if event["event"] == "done"), None)
    relative = PurePosixPath(str(done.get("path", ""))) if done else None
    if done is None or relative is None or relative.is_absolute() or ".." in relative.parts:
        raise P2PCacheError(f"{wanted}: the agent named no directory; update agent and library")
    path = (here.models_dir or Path(str(done.get("models_dir", "")))) / relative
    if not path.is_dir():
        raise NotFound(
            f"{path} isn't visible here: mount the agent's models directory, and set "
            "P2PCACHE_MODELS_DIR to where it is"
        )
    return path, str(done["digest"])
