"""The way back: a directory, or tensors of this process, stored as a model."""

import contextlib
import importlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pcache.errors import NoAgent, P2PCacheError, UsageError
from p2pcache.ids import Ref, as_written, spelled
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.files.completeness import signs_of_a_part
from p2pcache.io.files.indexing import find_files
from p2pcache.io.files.push_upload import Indexed, Sending, indexed
from p2pcache.io.http.client import AgentClient
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.loader.format.dtypes import import_numpy
from p2pcache.loader.format.header import shown
from p2pcache.loader.memory.tensors import framework_of
from p2pcache.loader.resolve import connect, model_name

_WEIGHTS = "model.safetensors"  # the name that engines look for
_TIED = "Some tensors share memory"  # so the library begins; names of tensors come later
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # as Rust says it


def push(
    directory: str | os.PathLike[str],
    ref: str,
    *,
    force: bool = False,
    strict: bool = False,
    agent: str | None = None,
) -> str:
    """Store a directory as a model, as `p2pcache push` does.

    The node's agent takes it into its cache, uploads what the storage lacks and moves the tag last. Without
    an agent on this machine it goes straight to the storage in P2PCACHE_ORIGIN, if that is set.

    Args:
        directory: its files are the model's; links to files are followed.
        ref: names the tag, such as "team/llama:v3".
        force: take the tag even if somebody else moves it meanwhile.
        strict: refuse a directory that looks like a part of a model.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.

    Returns:
        The ref with the model's digest.

    Raises:
        UsageError: no ref of a tag, a kind of file that isn't taken, or a part of a model and `strict`.
        Conflict: the tag moved meanwhile.
        P2PCacheError: the agent's or the storage's own error.
    """
    wanted, root = Ref.parse(ref), Path(model_name(directory))
    if wanted.digest:
        raise UsageError(f"push gives a tag its digest; leave the digest out: {wanted.short}")
    name = as_written(ref)
    signs = signs_of_a_part(find_files(root)) if strict else []
    if signs:
        raise UsageError(f"{signs[0]}; without strict=True it is pushed all the same")
    here = connect(agent)
    try:
        here.client.status()
    except NoAgent:  # one that is there and refuses isn't passed by: it keeps quotas
        if agent is not None or not here.origin:
            raise
        found = indexed(root)
        _push_directly(here.origin, ref, found, force=force)
    else:
        found = indexed(root)
        _push_through(here.client, name, found, force=force)
    return f"{name}@blake3:{found.layout.digest}"


def _push_through(client: AgentClient, ref: str, found: Indexed, *, force: bool) -> None:
    Sending(client, found).send_blobs(lambda _: None)
    with contextlib.closing(client.push(ref, found.layout.digest, force=force)) as events:
        if not any(event["event"] == "done" for event in events):
            raise P2PCacheError("the agent ended without a last event; push again")


def _push_directly(origin: str, ref: str, found: Indexed, *, force: bool) -> None:
    paths = {number: found.sources[path] for path, number in found.layout.blob_of_file.items()}

    def open_blob(number: int) -> int:
        with disk_errors(str(paths[number])):
            return os.open(paths[number], os.O_RDONLY | os.O_CLOEXEC)

    OriginRepo(open_origin(origin)).push(
        found.layout, Ref.parse(ref), open_blob=open_blob, spelling=spelled(ref), force=force
    )


def save_file(
    tensors: Mapping[str, Any],
    ref: str,
    metadata: Mapping[str, str] | None = None,
    *,
    force: bool = False,
    agent: str | None = None,
) -> str:
    """Store tensors as a model of one file, as `safetensors.torch.save_file` writes one.

    The file lies in TMPDIR until it is stored. It needs the safetensors package.

    Args:
        tensors: name to torch tensor, or name to numpy array. Arrays that are views, such as transposed ones, are
            copied first, which takes their size once more in memory; torch's views need `.contiguous()`.
        ref: names the tag.
        metadata: of the file's header.
        force: see `push`.
        agent: see `push`.

    Returns:
        The ref with the model's digest.

    Raises:
        UsageError: tensors or metadata that can't be stored, or safetensors is missing.
        NotFound, NoSpace, P2PCacheError: of TMPDIR; as `push`.
    """
    Ref.parse(ref)  # before anything is written
    kind = _kind_of(tensors)
    if not isinstance(metadata, Mapping | None):
        raise UsageError("metadata is a dict of texts")
    texts = dict(metadata or {})
    wrong = [key for key, text in texts.items() if not isinstance(key, str) or not isinstance(text, str)]  # fmt: skip
    if wrong:
        raise UsageError(f"metadata {shown(wrong[0])}: names and values are text")
    with disk_errors("TMPDIR, where the file is written"):
        room = tempfile.TemporaryDirectory(prefix="p2pcache-")
    with room as folder:
        with disk_errors(f"temporary file in {folder}"):
            _write(kind, tensors, Path(folder) / _WEIGHTS, texts)
        return push(folder, ref, force=force, agent=agent)


def _kind_of(tensors: object) -> str:
    """The library's module for these tensors.

    Raises:
        UsageError: it has none: they are no dict of one kind of tensors, or have a name or a mask that the file can't.
    """
    known = "save_file takes a dict of torch tensors, or one of numpy arrays"
    if not isinstance(tensors, Mapping):
        raise UsageError(f"{known}; of a module give its state_dict()")
    if not all(isinstance(name, str) for name in tensors):
        raise UsageError("names of tensors are text")
    if "__metadata__" in tensors:
        raise UsageError(
            "the file keeps its metadata under __metadata__; name the tensor otherwise"
        )
    try:
        kinds = {framework_of(tensor) for tensor in tensors.values()}
    except UsageError:
        raise UsageError(known) from None
    if kinds == {"pt"}:
        return "torch"
    if kinds != {"np"}:
        raise UsageError(known)
    for name, one in tensors.items():
        if isinstance(one, import_numpy().ma.MaskedArray):
            raise UsageError(f"{shown(name)}: a mask can't be stored; give the array's filled()")
    return "numpy"


def _as_shown(kind: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """What the library stores right: it writes the memory that a view begins at, in its order."""
    if kind == "torch":
        return {name: one.resolve_conj().resolve_neg() for name, one in tensors.items()}
    np = import_numpy()
    return {name: np.asarray(one, order="C") for name, one in tensors.items()}


def _write(kind: str, tensors: Mapping[str, Any], path: Path, metadata: dict[str, str]) -> None:
    try:
        library = importlib.import_module(f"safetensors.{kind}")
        refusal: type[Exception] = importlib.import_module("safetensors").SafetensorError
    except ImportError:
        raise UsageError("safetensors is not installed; pip install safetensors") from None
    try:
        library.save_file(_as_shown(kind, tensors), path, metadata=metadata or None)
    except KeyError as error:
        raise UsageError(f"safetensors has no dtype {error}") from error
    except (RuntimeError, ValueError, TypeError, refusal) as error:
        why = " ".join(str(error).split())
        if number := _OS_ERROR.search(why):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        if why.startswith(_TIED):
            why = f"of tensors that share memory (tied weights) give one; {why}"
        raise UsageError(f"these tensors can't be saved: {why}") from error
