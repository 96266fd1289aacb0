"""From what a caller names to a source or a directory, by way of the node's agent for refs."""

import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple, cast

from p2pcache.errors import NoAgent, NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref
from p2pcache.io import config
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.http.client import AgentClient, read_token
from p2pcache.io.models.published_tree import ref_of_tree
from p2pcache.loader.source.agent_source import AgentSource, not_visible
from p2pcache.loader.source.base import Source
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource

log = logging.getLogger(__name__)

# The operators' socket, then the clients' socket, which containers see.
DEFAULT_SOCKETS = ("/run/p2pcache/agent.sock", "/run/p2pcache/client/agent.sock")
Fetch = Literal["all", "needed"]
OPENINGS = 2  # of a complete model: what is gone at the second one is elsewhere


def open_source(
    ref_or_dir: str | os.PathLike[str],
    *,
    agent: str | None,
    fetch: Fetch,
    deadline: Deadline | None = None,
) -> Source:
    """Open an existing directory or .safetensors file, else a ref through the agent.

    Where there is no agent, a ref is what the node last knew by it, if all of that is here.

    Args:
        ref_or_dir: what the caller named.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, the configuration file, or
            the first default socket that there is.
        fetch: "all": the whole model comes to this node; "needed": only what this load reads.
        deadline: of the agent's first answer; None: none.

    Raises:
        UsageError: neither a path nor a ref.
        NotFound, Unreachable, ...: the agent's own errors.
    """
    text, path = model_name(ref_or_dir), existing_path(ref_or_dir)
    if path is not None:
        if path.is_file() and path.suffix != ".safetensors":
            raise NotFound(f"{text}: is no .safetensors file; give one, or the model's directory")
        return DirectorySource(path)
    here = connect(agent)
    try:
        ref = Ref.parse(text)
        try:
            return _open_ref(here, ref, fetch, deadline)
        except NoAgent as error:
            return DirectorySource(_last_known(here, ref, error), str(ref))
    except (UsageError, NoAgent) as error:
        if ":" in text:
            raise
        # It may as well be the misspelt name of a directory.
        raise type(error)(f"{error}; nor is there a directory {text[:100]!r}") from error


def model_name(ref_or_dir: str | os.PathLike[str]) -> str:
    """A path or ref as text.

    Raises:
        UsageError: it is empty, or neither text nor a path.
    """
    text: object = ref_or_dir
    if isinstance(ref_or_dir, os.PathLike):
        text = os.fspath(ref_or_dir)
    if isinstance(text, str) and text:  # "" as a path is the working directory
        return text
    what = "is empty" if text == "" else f"can't be a {type(ref_or_dir).__name__}"
    raise UsageError(f"the model's name {what}; give a directory or a ref such as team/llama:v3")


def existing_path(ref_or_dir: str | os.PathLike[str]) -> Path | None:
    """The directory or file, if it exists; None: the name must be a ref.

    Raises:
        NotFound: the name can only be a path, and nothing is there.
        UsageError: it is empty, or neither text nor a path.
    """
    text = model_name(ref_or_dir)
    path = Path(text)
    with disk_errors(text[:100]):
        if path.exists():
            return path
    if text.startswith((".", "/", "~")) or isinstance(ref_or_dir, os.PathLike):
        raise NotFound(f"{text}: no such directory or file")
    return None


class NodeAgent(NamedTuple):
    """The node's agent as this process sees it, and the settings that go with it."""

    client: AgentClient
    models_dir: Path | None  # where this process sees the agent's; None: where the agent does
    origin: str  # URL of the storage that replaces a lost agent; "": none
    compile_cache_namespaces: str = ""  # from which this process takes programs
    cache_dir: str = config.CACHE_DIR  # the agent's, as the settings have it


def connect(agent: str | None) -> NodeAgent:
    """Find the node's agent in the environment or the configuration file.

    Args:
        agent: as for `open_source`.

    Raises:
        UsageError: the address is malformed.
    """
    sections = config.read_file(config.find_file(None, os.environ)).sections
    section = sections.get("client", {})
    cache_dir = sections.get("agent", {}).get("cache_dir")

    def setting(name: str) -> str:
        return os.environ.get(f"P2PCACHE_{name.upper()}") or str(section.get(name, ""))

    client = AgentClient(
        agent or setting("agent") or _default_agent(), token=read_token(setting("token_file"))
    )
    models_dir = setting("models_dir")
    return NodeAgent(
        client, Path(models_dir) if models_dir else None, setting("origin"),
        setting("compile_cache_namespaces"), str(cache_dir or config.CACHE_DIR),
    )  # fmt: skip


def _open_ref(here: NodeAgent, ref: Ref, fetch: Fetch, deadline: Deadline | None) -> Source:
    """The model that a ref means to its agent; one that is complete here with its files open.

    Raises:
        NotFound: no such model, or its directory isn't visible here.
        P2PCacheError: the agent's own error.
    """
    tree = Path()
    for _ in range(OPENINGS):
        source = AgentSource.attach(
            here.client, ref, needed=fetch == "needed", origin=here.origin,
            models_dir=here.models_dir, deadline=deadline,
        )  # fmt: skip
        if source.tree is None:
            return source
        tree = source.tree
        source.close()  # the model is complete here
        # It may be evicted before its files are open. The agent, asked again, brings it back.
        with contextlib.suppress(NotFound):
            found = DirectorySource(tree, source.name)
            found.open_ahead()
            return found
    raise not_visible(tree)


def _last_known(here: NodeAgent, ref: Ref, error: NoAgent) -> Path:
    """The directory of a model that is complete on this node, while its agent is away.

    The tag may have moved since. A link to a tree says what it meant to the agent last. An agent that is there
    decides itself what a tag means, also while it can ask nobody.

    Raises:
        NoAgent: `error`, where it isn't here.
    """
    models = here.models_dir
    if models is None:
        # An agent on another host may be of another cluster: this node's models aren't its own.
        if not here.client.address.startswith("unix://"):
            raise error
        models = Path(here.cache_dir) / "models"
    named = models / ref.namespace / ref.name / (f"@{ref.digest}" if ref.digest else ref.tag)
    try:
        tree = named.resolve(strict=True)
    except OSError:
        raise error from None
    found = ref_of_tree(tree)
    if found is None or tree.name != f"@{found.digest}":
        raise error
    log.warning("%s: no agent answers; taking what this node last knew: %s", ref, tree.name)
    return tree


def _default_agent() -> str:
    usable = [path for path in DEFAULT_SOCKETS if os.access(path, os.W_OK)]
    return f"unix://{(usable or DEFAULT_SOCKETS)[0]}"


def snapshot(
    ref: str,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    agent: str | None = None,
) -> Path:
    """Let the node's agent fetch a model, or some of its files, as `p2pcache pull` does.

    Args:
        ref: the model.
        include: patterns of files, or one, such as "*.json"; none: all.
        exclude: patterns of files to leave out, or one, such as "*.safetensors".
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.

    Returns:
        A directory that is complete, read-only and never changes. While there is no agent: that of all files, whatever
        `include` and `exclude` say, of what the node last knew by this name, if they are here.

    Raises:
        NotFound: no such model, no such files, or the directory isn't visible here.
        P2PCacheError: the agent's own error.
    """
    return pull_pinned(ref, include=include, exclude=exclude, agent=agent)[0]


def pull_pinned(
    ref: str,
    *,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    agent: str | None = None,
) -> tuple[Path, Ref]:
    """As `snapshot`, and the ref with its digest: the tag may move before it is used again."""
    wanted, here = Ref.parse(model_name(ref)), connect(agent)
    include, exclude = _patterns("include", include), _patterns("exclude", exclude)
    try:
        path, digest = pull_directory(here, wanted, include=include, exclude=exclude)
    except NoAgent as error:
        path = _last_known(here, wanted, error)
        digest = path.name.removeprefix("@")
    return path, wanted._replace(digest=digest)


def _patterns(name: str, given: object) -> list[str]:
    # A pattern that was taken for a sequence would be a pattern for each letter; "*" is all files.
    several = isinstance(given, Iterable) and not isinstance(given, str)
    patterns = list(cast("Iterable[object]", given)) if several else [given]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise UsageError(f"{name}: expected patterns of files, got {pattern!r}")
    return cast("list[str]", patterns)


def pull_directory(
    here: NodeAgent, wanted: Ref, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> tuple[Path, str]:
    """Pull through a given agent.

    Args:
        here: the agent.
        wanted: the model.
        include: see `snapshot`.
        exclude: see `snapshot`.

    Returns:
        The directory, and the model's digest (hex).

    Raises:
        NotFound: no such model, or the directory isn't visible here.
        P2PCacheError: the agent's own error.
    """
    events = here.client.pull(str(wanted), include=include, exclude=exclude)
    with contextlib.closing(events):
        done = next((event for event in events if event["event"] == "done"), None)
    relative = PurePosixPath(str(done.get("path", ""))) if done else None
    if done is None or relative is None or relative.is_absolute() or ".." in relative.parts:
        raise P2PCacheError(f"{wanted}: the agent named no directory; update agent and library")
    path = (here.models_dir or Path(str(done.get("models_dir", "")))) / relative
    if not path.is_dir():
        raise not_visible(path)
    return path, str(done["digest"])
