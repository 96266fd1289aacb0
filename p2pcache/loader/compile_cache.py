"""Compile caches travel as models do: restored before an engine starts, saved after its first start.

    from p2pcache import compile_cache
    compile_cache.restore("team/llama:v3", "/cache/vllm", engine="vllm")

A cache is bound to its key (`core.compilecache.Key`): it is found by the key's digest, and what it
says of itself is compared field by field. It holds programs: docs/trust.md says who is believed.
"""

import contextlib
import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from p2pcache.core.format import compile_cache_key as cc
from p2pcache.errors import (
    Conflict,
    IntegrityError,
    NotAllowed,
    NotFound,
    P2PCacheError,
    UsageError,
)
from p2pcache.ids import Ref
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.materialise import marked, materialise, unfinished
from p2pcache.io.files.push_upload import Sending, indexed
from p2pcache.io.files.stable_copy import steady_copy
from p2pcache.io.host import compile_target
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.resolve import NodeAgent, connect, pull_directory

log = logging.getLogger(__name__)

PATIENCE_S = 60.0  # an engine that says it is ready may still write the last graphs
_NOT_SAVED = (".lock", ".tmp")  # of processes, not of the cache


class Cache(NamedTuple):
    """A compile cache by name."""

    ref: Ref
    key: cc.Key


class Result(NamedTuple):
    """How a restore or a save ended."""

    ref: Ref
    done: bool  # False: there was nothing to do, the cache was there already
    files: int
    size_bytes: int
    seconds: float


def find(
    model: str,
    *,
    engine: str,
    fields: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    namespace: str = "",
    here: NodeAgent | None = None,
) -> Cache:
    """The compile cache of a model for an engine on this machine; whether there is one is another question.

    Args:
        model: ref of the model; its digest is asked for, if the ref has none.
        engine: the distribution that compiles, such as vllm, sglang or torch.
        fields: of the key, instead of what is found here: a process that isn't where the engine
            will run says what runs there.
        extra: what else changes the code, such as tensor_parallel_size.
        namespace: where caches are kept; "": beside the model.
        here: the agent to ask; None: the node's.

    Raises:
        UsageError: an unknown field; or the engine isn't installed here and nothing was said of it.
        NotFound: no such model.
        P2PCacheError: the agent's own error; a GPU that can't be named.
    """
    ref, said = Ref.parse(model), dict(fields or {})
    unknown = sorted(set(said) - set(cc.FIELDS))
    if unknown:
        raise UsageError(
            f"a compile cache's key has no field {unknown[0]!r}; it has {', '.join(cc.FIELDS)}, and extras"
        )
    values = {**_detected_fields(engine, said), "engine": engine, **said}
    if "model" not in said:
        client = (here or connect(None)).client
        values["model"] = ref.digest or str(client.model(str(ref)).get("digest", ""))
    if not isinstance(extra, Mapping | None):
        raise UsageError(f"extra {extra!r}: expected a dict of texts")
    key = cc.make_key(values, dict(extra or {}))
    return Cache(cc.cache_ref(ref, key, namespace), key)


def restore(
    model: str,
    directory: str | os.PathLike[str],
    *,
    engine: str,
    fields: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    namespace: str = "",
    here: NodeAgent | None = None,
) -> Result:
    """Put the compile cache for this machine where the engine will look for it.

    The directory appears complete or not at all, readable to the caller alone (0700). Any number of
    processes may do it at once. One that holds this very cache is left as it is.

    Args:
        model: ref of the model.
        directory: missing or empty; on a mount, better one below it.
        engine: as for `find`, and so are the others.
        fields: as for `find`.
        extra: as for `find`.
        namespace: as for `find`.
        here: the agent, and the namespaces that are trusted; None: as the settings say.

    Raises:
        NotAllowed: the namespace isn't trusted; or the directory is somebody else's.
        NotFound: nobody has saved a cache for this key.
        IntegrityError: it says of itself that it is for another key.
        UsageError: the directory holds something else; and what `find` raises.
    """
    began, here, target = time.monotonic(), here or connect(None), _absolute(directory)
    ref, key = find(
        model, engine=engine, fields=fields, extra=extra, namespace=namespace, here=here
    )
    cc.permit(here.compile_cache_namespaces, ref, "client")
    if _restored_key(target) == key:
        return Result(ref, False, 0, 0, time.monotonic() - began)  # noqa: FBT003 - the field has a name
    _refuse_filled(target, key)
    if not _is_stored(here.client, ref):
        raise NotFound(
            f"nobody has saved {ref.short}, the compile cache for this key, yet; "
            "'p2pcache compile-cache save' does it after the engine's first start"
        )
    tree, _ = pull_directory(here, ref)
    note = _read_note(tree, ref, key)
    with _exclusive(target):
        fresh = _restored_key(target) != key  # else somebody else was quicker
        if fresh:
            materialise(tree, target, finish=lambda root: _make_private(root, note.mtimes))
    files = [path for path in tree.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    result = Result(ref, fresh, len(files) - 1, size, time.monotonic() - began)  # without the note
    log.info("compile cache %s: %d bytes to %s in %.2f s", ref.short, size, target, result.seconds)
    return result


def save(
    model: str,
    directory: str | os.PathLike[str],
    *,
    engine: str,
    fields: Mapping[str, str] | None = None,
    extra: Mapping[str, str] | None = None,
    namespace: str = "",
    replace: bool = False,
    patience_s: float = PATIENCE_S,
    here: NodeAgent | None = None,
) -> Result:
    """Store what an engine compiled, for all nodes that have the same key. The first one to do it wins.

    Args:
        model: ref of the model.
        directory: the engine's cache; nothing else should be in it.
        engine: as for `find`, and so are the next three.
        fields: as for `find`.
        extra: as for `find`.
        namespace: as for `find`.
        replace: store it even if there is one for this key.
        patience_s: how long to wait until the engine has ceased to write.
        here: the agent, and the namespaces that are trusted; None: as the settings say.

    Raises:
        NotAllowed: the namespace isn't trusted, or the agent lets us pull only.
        NotFound: the directory is missing or empty.
        TimedOut: the engine went on writing.
        UsageError: something in it that isn't a file; and what `find` raises.
    """
    began, here, source = time.monotonic(), here or connect(None), _absolute(directory)
    ref, key = find(
        model, engine=engine, fields=fields, extra=extra, namespace=namespace, here=here
    )
    cc.permit(here.compile_cache_namespaces, ref, "client")
    if not replace and _is_stored(here.client, ref):
        return Result(ref, False, 0, 0, time.monotonic() - began)  # noqa: FBT003 - the field has a name
    beside = source.parent if os.access(source.parent, os.W_OK) else None
    with disk_errors(str(beside or "the temporary directory")):
        staging = tempfile.TemporaryDirectory(prefix=f".{source.name}.saving-", dir=beside)
    with staging as name:
        folder = Path(name)
        mtimes = steady_copy(source, folder, skip=_is_skipped, patience_s=patience_s)
        with disk_errors(name):
            (folder / cc.NOTE).write_bytes(cc.encode_note(key, mtimes))
        try:
            size = _push(here.client, ref, folder, force=replace)
        except Conflict:
            log.info("compile cache %s: somebody else saved it first", ref.short)
            return Result(ref, False, 0, 0, time.monotonic() - began)  # noqa: FBT003
    return Result(ref, True, len(mtimes), size, time.monotonic() - began)  # noqa: FBT003


def _absolute(directory: str | os.PathLike[str]) -> Path:
    if not os.fspath(directory):  # a variable that isn't set; as a path it's the working directory
        raise UsageError("the cache's directory has no name; say where the engine keeps its cache")
    return Path(os.path.abspath(Path(directory).expanduser()))  # noqa: PTH100 - links stay links


def _detected_fields(engine: str, said: Mapping[str, str]) -> dict[str, str]:
    """The fields that nobody said."""
    found = {
        "engine_version": compile_target.version_of(engine), "torch": compile_target.version_of("torch"),
        "triton": compile_target.version_of("triton"), "python": compile_target.python_abi(),
        "host": compile_target.processor(), "libc": compile_target.libc(), "cuda": compile_target.torch_cuda(),
    }  # fmt: skip
    for field, package in (("engine_version", engine), ("torch", "torch")):
        if not found[field] and field not in said:
            raise UsageError(
                f"{package or 'an engine without a name'} isn't installed here, so the key of its compile "
                f"cache isn't known: run this where the engine runs, or say --field {field}=VERSION and "
                "the other fields that differ there"
            )
    if "device" in said:
        return found | {"device": "", "capability": "", "driver": ""}
    device, capability, driver = compile_target.gpu()
    return found | {"device": device, "capability": capability, "driver": driver}


def _is_stored(client: AgentClient, ref: Ref) -> bool:
    try:
        client.model(ref.short)
    except NotFound:
        return False
    return True


def _read_note(tree: Path, ref: Ref, key: cc.Key) -> cc.Note:
    """What a cache says of itself, if it is for this key."""
    try:
        with disk_errors(str(tree)), (tree / cc.NOTE).open("rb") as file:
            note = cc.decode_note(file.read(cc.MAX_NOTE_BYTES + 1))
    except NotFound:
        raise IntegrityError(
            f"{ref.short} is no compile cache: it has no {cc.NOTE}; not restored"
        ) from None
    unlike = cc.differences(key, note.key)
    if unlike:
        raise IntegrityError(
            f"{ref.short} was saved for something else: {'; '.join(unlike)}; not restored"
        )
    return note


def _restored_key(target: Path) -> cc.Key | None:
    """The key of the cache that was restored to a directory of ours; None: there is none, or half of one."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target} exists and is not a directory; choose another one")
    try:
        with disk_errors(str(target)):
            info = target.stat()
            if info.st_uid != os.geteuid():
                raise NotAllowed(
                    f"{target} belongs to user {info.st_uid}, who could change what the engine runs; name a "
                    "directory below it that doesn't exist yet, or run as that user"
                )
            if info.st_mode & 0o022 or unfinished(target):
                return None
            with (target / cc.NOTE).open("rb") as file:
                return cc.decode_note(file.read(cc.MAX_NOTE_BYTES + 1)).key
    except (NotFound, IntegrityError):
        return None


def _refuse_filled(target: Path, key: cc.Key) -> None:
    """Say so before gigabytes are fetched. What somebody restores meanwhile is no hindrance."""
    with disk_errors(str(target)):
        entries = list(target.iterdir()) if target.is_dir() else []
    if entries and not marked(target, entries) and _restored_key(target) != key:
        raise UsageError(
            f"{target} holds something else (another cache, perhaps of another version); choose another "
            "directory or remove it first"
        )


@contextlib.contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """One process at a time fills a directory, which is ours alone from here on."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            target.mkdir(mode=0o700)
        folder = os.open(target, flags)
    try:
        with disk_errors(str(target)):
            fcntl.flock(folder, fcntl.LOCK_EX)  # a rename replaces it: who waited looks again
            os.fchmod(folder, 0o700)
        yield
    finally:
        os.close(folder)


def _make_private(root: int, mtimes: Mapping[str, int]) -> None:
    """Everything below an open directory: for its owner only, with the times that it was saved with."""
    for folder, _, names, fd in os.fwalk(".", dir_fd=root):
        os.fchmod(fd, 0o700)
        for name in names:
            os.chmod(name, 0o600, dir_fd=fd)
            saved = mtimes.get(os.path.normpath(f"{folder}/{name}"))
            if saved is not None:
                os.utime(name, ns=(saved, saved), dir_fd=fd)


def _is_skipped(name: str) -> bool:
    return name == cc.NOTE or name.endswith(_NOT_SAVED)


def _push(client: AgentClient, ref: Ref, folder: Path, *, force: bool) -> int:
    """Through the agent, which goes on to serve it; the bytes of the model."""
    found = indexed(folder)
    Sending(client, found).run(lambda _: None)
    with contextlib.closing(client.push(ref.short, found.layout.digest, force=force)) as events:
        if any(event["event"] == "done" for event in events):
            return found.layout.manifest.size_bytes
    raise P2PCacheError("the agent ended without a last event; save again")
