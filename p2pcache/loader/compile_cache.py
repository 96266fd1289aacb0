"""Saves what an engine compiled as a model, and restores it on nodes of the same kind.

    from p2pcache import compile_cache
    compile_cache.restore("team/llama:v3", "/cache/vllm", engine="vllm")

A cache is restored before an engine starts and saved after its first start. It is bound to its key
(`core.format.compile_cache_key.Key`): it is found by the key's digest, and the key in its note is
compared field by field. It holds programs: docs/trust.md says whose are run.
"""

import contextlib
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
from p2pcache.io.disk.disk import disk_errors, lock
from p2pcache.io.files.materialise import entries_of, marked, materialise, unfinished
from p2pcache.io.files.push_upload import Sending, indexed
from p2pcache.io.files.stable_copy import steady_copy
from p2pcache.io.host import compile_target
from p2pcache.io.http.client import AgentClient
from p2pcache.loader.resolve import NodeAgent, connect, pull_directory

__all__ = ["Cache", "Result", "find", "restore", "save"]

log = logging.getLogger(__name__)

PATIENCE_S = 60.0  # an engine that reports ready may still write its last graphs
_NOT_SAVED = (".lock", ".tmp")  # suffixes of files that belong to processes


class Cache(NamedTuple):
    """The name of a compile cache, and the key that it is for."""

    ref: Ref
    key: cc.Key


class Result(NamedTuple):
    """How a restore or a save ended."""

    ref: Ref
    done: bool  # False: there was nothing to do, since the cache existed already
    files: int  # how many, without the note
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
    """The name and key of a model's compile cache for an engine on this machine, stored or not.

    Args:
        model: ref of the model; the agent is asked for the digest, if the ref has none.
        engine: name of the installed package that compiles, such as vllm, sglang or torch.
        fields: of the key, instead of those detected here, for a process that runs elsewhere than the
            engine.
        extra: what else changes the compiled code, such as tensor_parallel_size.
        namespace: of caches; "": that of the model.
        here: the agent to ask; None: the node's.

    Raises:
        UsageError: an unknown field; or the engine isn't installed here and `fields` lacks its version.
        NotFound: no such model.
        P2PCacheError: the agent's own error; a GPU that can't be named.
    """
    ref, given = Ref.parse(model), dict(fields or {})
    unknown = sorted(set(given) - set(cc.FIELDS))
    if unknown:
        raise UsageError(
            f"a compile cache's key has no field {unknown[0]!r}; it has {', '.join(cc.FIELDS)}, and extras"
        )
    values = {**_detected_fields(engine, given), "engine": engine, **given}
    if "model" not in given:
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
    """Restore the compile cache for this machine to a directory of the engine.

    The directory appears complete or not at all, and only the caller can read it (mode 0700). Any
    number of processes may restore at once. A directory with this very cache is left as it is.

    Args:
        model: ref of the model.
        directory: missing or empty; on a mount a directory below its root is safer.
        engine: see `find`.
        fields: see `find`.
        extra: see `find`.
        namespace: see `find`.
        here: the agent, and the trusted namespaces; None: as the settings say.

    Raises:
        NotAllowed: the namespace isn't trusted; or another user owns the directory.
        NotFound: no cache is stored for this key.
        IntegrityError: the cache's note has another key.
        UsageError: the directory holds something else; or as `find`.
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
        fresh = _restored_key(target) != key  # another process may have been quicker
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
    """Store what an engine compiled, for all nodes with the same key. The first save wins.

    Args:
        model: ref of the model.
        directory: the engine's cache; all of its files are stored.
        engine: see `find`.
        fields: see `find`.
        extra: see `find`.
        namespace: see `find`.
        replace: store it even if a cache is stored for this key.
        patience_s: how long to wait until the engine stops writing, in seconds.
        here: the agent, and the trusted namespaces; None: as the settings say.

    Raises:
        NotAllowed: the namespace isn't trusted, or the agent gives no right to push.
        NotFound: the directory is missing or empty.
        TimedOut: the engine didn't stop writing.
        UsageError: the directory holds something that is no file; or as `find`.
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
    # An empty name comes from an unset variable; as a path it would be the working directory.
    if not os.fspath(directory):
        raise UsageError("the cache's directory has no name; say where the engine keeps its cache")
    try:
        return Path(os.path.abspath(Path(directory).expanduser()))  # noqa: PTH100 - links stay links
    except RuntimeError:  # no HOME, and a user whom /etc/passwd doesn't know
        raise UsageError(f"{directory}: no home directory; name it without '~'") from None


def _detected_fields(engine: str, given: Mapping[str, str]) -> dict[str, str]:
    """The key's fields as this machine has them; GPU fields stay empty if the device is given."""
    found = {
        "engine_version": compile_target.version_of(engine), "torch": compile_target.version_of("torch"),
        "triton": compile_target.version_of("triton"), "python": compile_target.python_abi(),
        "host": compile_target.processor(), "libc": compile_target.libc(), "cuda": compile_target.torch_cuda(),
    }  # fmt: skip
    for field, package in (("engine_version", engine), ("torch", "torch")):
        if not found[field] and field not in given:
            raise UsageError(
                f"{package or 'an engine without a name'} isn't installed here, so the key of its compile "
                f"cache isn't known: run this where the engine runs, or say --field {field}=VERSION and "
                "the other fields that differ there"
            )
    if "device" in given:
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
    """Read a cache's note.

    Raises:
        IntegrityError: there is none, or it is for another key.
    """
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
    """The key of the cache in a directory that we own; None: there is none, or a part of one."""
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
    """Refuse a directory that holds something else, before gigabytes are fetched.

    A cache that another process restores meanwhile is accepted.
    """
    with disk_errors(str(target)):
        entries = entries_of(target) if target.is_dir() else []
    if entries and not marked(target, entries) and _restored_key(target) != key:
        raise UsageError(
            f"{target} holds something else (another cache, perhaps of another version); choose another "
            "directory or remove it first"
        )


@contextlib.contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Hold a lock on the directory, so that one process at a time fills it. Makes it private (0700)."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with disk_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            target.mkdir(mode=0o700)
        folder = os.open(target, flags)
    try:
        with disk_errors(str(target)):
            # Meanwhile another process may have replaced the directory: the caller checks it again.
            lock(folder, str(target), wait=True)
            os.fchmod(folder, 0o700)
        yield
    finally:
        os.close(folder)


def _make_private(root: int, mtimes: Mapping[str, int]) -> None:
    """Make everything below an open directory private to its owner, and set the saved times (ns)."""
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
    """Push through the agent, which serves the model from then on; returns its bytes."""
    found = indexed(folder)
    Sending(client, found).send_blobs(lambda _: None)
    with contextlib.closing(client.push(ref.short, found.layout.digest, force=force)) as events:
        if any(event["event"] == "done" for event in events):
            return found.layout.manifest.size_bytes
    raise P2PCacheError("the agent ended without a last event; save again")
