"""The loader's public calls. `import p2pcache` offers them; torch and numpy are imported on first use.

A `ref_or_dir` is an existing directory or .safetensors file, which needs no agent, or a ref such as
"team/llama:v3". The node's agent pulls a ref; its tensors are handed out while it arrives.
"""

import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from p2pcache.core.units import parse_size
from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import Framework, import_torch
from p2pcache.loader.memory.backend import cuda_device
from p2pcache.loader.open_model import OpenModel
from p2pcache.loader.plan.placement import plan_placement
from p2pcache.loader.plan.selection import Filter, ParallelAxis, select_tensors
from p2pcache.loader.report import LoadReport
from p2pcache.loader.resolve import Fetch
from p2pcache.loader.session import Memory, open_session
from p2pcache.loader.source.catalog import Part
from p2pcache.loader.stream import (
    MIN_LIMIT_BYTES,
    TensorStream,
    Tuning,
    check_framework,
    start,
    start_placed,
)

PathLike = str | os.PathLike[str]


class TorchDevice(Protocol):
    """A torch.device, for type checkers that have no torch."""

    @property
    def type(self) -> str:
        """The kind of device, such as "cuda"."""
        ...


Device = str | int | TorchDevice
# A few tensors of the usual size. On the host a larger limit means more first touches of pages, which
# take longer than reads (figures: loadtest/README.md). On a device memory costs no such time.
HOST_LIMIT, DEVICE_LIMIT = "64MiB", "256MiB"


def safe_open(
    ref_or_dir: PathLike,
    framework: Framework = "pt",
    device: Device = "cpu",
    *,
    subfolder: str | None = None,
    files: str | Sequence[str] | None = None,
    memory: Memory = "auto",
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
) -> OpenModel:
    """Open a model to read its tensors one by one, as `safetensors.safe_open` does for a file.

    Args:
        ref_or_dir: a directory, a file, or a ref.
        framework: "pt" (torch), "np" (numpy) or "raw" (`RawTensor`).
        device: where tensors go: "cpu", "cuda", "cuda:1", a torch.device, or the number of a GPU.
        subfolder: see `iter_tensors`.
        files: see `iter_tensors`.
        memory: see `iter_tensors`.
        fetch: "all": the agent fetches the whole model; "needed": only what is asked for.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: of the opening, then of each tensor, in seconds; None: no limit.

    Raises:
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
    """
    device = check_framework(framework, device)
    if device != "cpu":
        cuda_device(device)
    session = open_session(ref_or_dir, agent, fetch, timeout_s, Part.parse(subfolder, files))
    try:
        return OpenModel(session, framework, device, timeout_s, memory)
    except BaseException:
        session.source.close()
        raise


def iter_tensors(
    ref_or_dir: PathLike,
    *,
    device: Device = "cpu",
    framework: Framework = "pt",
    filter: Filter | None = None,  # noqa: A002  # the name that other loaders use
    stage: tuple[int, int] | None = None,
    parallel: ParallelAxis | Sequence[ParallelAxis] = (),
    subfolder: str | None = None,
    files: str | Sequence[str] | None = None,
    memory: Memory = "auto",
    memory_limit: int | str | None = None,
    owned: bool = True,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
    progress: bool | None = None,
    tuning: Tuning | None = None,
) -> TensorStream:
    """Iterate over (name, tensor) as their bytes arrive, early layers first.

    Args:
        ref_or_dir: a directory, a file, or a ref.
        device: where tensors go: "cpu", "cuda", "cuda:1", a torch.device, or the number of a GPU.
        framework: "pt" (torch), "np" (numpy) or "raw" (`RawTensor`).
        filter: which tensors to load: a glob, several, or a function of the name.
        stage: (i, n): only stage i of n of a pipeline, as a "pipeline" axis.
        parallel: this process' places in parallel groups; see `ParallelAxis`.
        subfolder: the folder of the model that has the weights, such as "text_encoder"; None: the
            model's own directory.
        files: globs of .safetensors files, such as "*.fp16.safetensors", for a model that has its
            weights in several variants; None: as the index says.
        memory: host tensors of a complete model. "auto": mappings of a published model's files (nobody
            changes them), copies of any other directory. "mapped": mappings of any directory; it must
            not be changed while a tensor of it lives. "private": copies.
        memory_limit: bytes, or text such as "2GiB". It bounds the memory that the loader holds itself
            (tensors that are read and not yet handed out, and the pinned ring), on host and device
            each. A larger tensor is loaded all the same, alone. None: 64 MiB on the host, 256 MiB on
            a device.
        owned: True: nobody changes a tensor's bytes while it lives. False: each is valid until the next
            is asked for; its memory is used again.
        fetch: "all": the agent fetches the whole model; "needed": only what this load reads.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: of the whole load, in seconds; None: no limit.
        progress: True: a bar of tqdm; False: a line at INFO each 10 s; None: a bar on a terminal or in a
            notebook, where tqdm is installed, else lines.
        tuning: for measurements.

    Raises:
        UsageError: an argument is wrong.
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
    """
    device = check_framework(framework, device)
    limit_bytes = _limit(memory_limit, HOST_LIMIT if device == "cpu" else DEVICE_LIMIT)
    axes = _axes(stage, parallel)
    session = open_session(ref_or_dir, agent, fetch, timeout_s, Part.parse(subfolder, files))
    try:
        return start(
            session,
            select_tensors(list(session.catalog.tensors.values()), filter, axes),
            device=device,
            framework=framework,
            limit_bytes=limit_bytes,
            owned=owned,
            tuning=tuning or Tuning(),
            memory=memory,
            bar=progress,
        )
    except BaseException:
        session.source.close()
        raise


def load(
    ref_or_dir: PathLike,
    device: Device = "cpu",
    framework: Framework = "pt",
    *,
    filter: Filter | None = None,  # noqa: A002
    stage: tuple[int, int] | None = None,
    parallel: ParallelAxis | Sequence[ParallelAxis] = (),
    dtype: Any = None,
    subfolder: str | None = None,
    files: str | Sequence[str] | None = None,
    memory: Memory = "auto",
    memory_limit: int | str | None = None,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Load all tensors of a model into a dict by name. The arguments are those of `iter_tensors`, and one more.

    Args:
        ref_or_dir: see `iter_tensors`.
        device: see `iter_tensors`.
        framework: see `iter_tensors`.
        filter: see `iter_tensors`.
        stage: see `iter_tensors`.
        parallel: see `iter_tensors`.
        dtype: a torch dtype, or its name, that tensors of floating point numbers of 16 bits and more
            are converted to, one by one; smaller ones belong to scales, and stay. None: as they are.
        subfolder: see `iter_tensors`.
        files: see `iter_tensors`.
        memory: see `iter_tensors`.
        memory_limit: see `iter_tensors`.
        fetch: see `iter_tensors`.
        agent: see `iter_tensors`.
        timeout_s: see `iter_tensors`.
        progress: see `iter_tensors`.

    Raises:
        P2PCacheError: as `iter_tensors`; or the load failed midway.
    """
    convert = _conversion(dtype, framework)
    with iter_tensors(
        ref_or_dir,
        device=device,
        framework=framework,
        filter=filter,
        stage=stage,
        parallel=parallel,
        subfolder=subfolder,
        files=files,
        memory=memory,
        memory_limit=memory_limit,
        fetch=fetch,
        agent=agent,
        timeout_s=timeout_s,
        progress=progress,
    ) as stream:
        if convert is None:
            return dict(stream)
        return {name: convert(tensor) for name, tensor in stream}


def _conversion(dtype: Any, framework: Framework) -> Callable[[Any], Any] | None:
    if dtype is None:
        return None
    if framework != "pt":
        raise UsageError(f"dtype {dtype!r}: framework {framework!r} converts nothing; ask for 'pt'")
    torch = import_torch()
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(wanted, torch.dtype) or not wanted.is_floating_point:
        raise UsageError(f"dtype {dtype!r}: expected torch.bfloat16 or another of floating point")

    def convert(tensor: Any) -> Any:
        found = tensor.dtype
        return tensor.to(wanted) if found.is_floating_point and found.itemsize >= 2 else tensor

    return convert


def load_into(
    module_or_dict: Any,
    ref_or_dir: PathLike,
    strict: bool = True,  # noqa: FBT001, FBT002  # as torch's load_state_dict has it
    *,
    filter: Filter | None = None,  # noqa: A002
    stage: tuple[int, int] | None = None,
    parallel: ParallelAxis | Sequence[ParallelAxis] = (),
    subfolder: str | None = None,
    files: str | Sequence[str] | None = None,
    memory_limit: int | str | None = None,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
    progress: bool | None = None,
    tuning: Tuning | None = None,
) -> LoadReport:
    """Load a model into existing tensors, without an intermediate copy where possible.

    Names, shapes and kinds are checked before the first byte is written. If the load fails later, the
    targets hold old and new bytes: load again or drop them.

    Args:
        module_or_dict: a torch module, or names to torch tensors, numpy arrays or bytearrays.
        ref_or_dir: a directory, a file, or a ref.
        strict: target and model must have the same names; names that share memory count as one. A
            tensor that `filter`, `stage` or `parallel` leave out doesn't count.
        filter: see `iter_tensors`.
        stage: see `iter_tensors`.
        parallel: see `iter_tensors`; targets have the shapes of the slices.
        subfolder: see `iter_tensors`.
        files: see `iter_tensors`.
        memory_limit: bounds the memory for conversions and the pinned ring; other tensors need none.
            None: 64 MiB; 256 MiB where a target lies on a device.
        fetch: see `iter_tensors`.
        agent: see `iter_tensors`.
        timeout_s: see `iter_tensors`.
        progress: see `iter_tensors`.
        tuning: see `iter_tensors`.

    Returns:
        The figures of the load. With strict=False: also the names without a partner, `missing_keys` of
        the target and `unexpected_keys` of the model.

    Raises:
        UsageError: an argument is wrong; names, shapes or targets don't fit.
        P2PCacheError: as `iter_tensors`.
    """
    _limit(memory_limit, HOST_LIMIT)  # before anything is opened
    axes = _axes(stage, parallel)
    session = open_session(ref_or_dir, agent, fetch, timeout_s, Part.parse(subfolder, files))
    try:
        items = select_tensors(list(session.catalog.tensors.values()), filter, axes)
        plan = plan_placement(module_or_dict, items, strict=strict)
        limit_bytes = _limit(memory_limit, DEVICE_LIMIT if plan.buffers else HOST_LIMIT)
        stream = start_placed(session, plan, limit_bytes, tuning or Tuning(), progress)
        stream.report.missing_keys = plan.missing
        stream.report.unexpected_keys = plan.unexpected
    except BaseException:
        session.source.close()
        raise
    with stream:
        for _ in stream:
            pass
    return stream.report


def _limit(given: int | str | None, default: str) -> int:
    memory_limit = default if given is None else given
    try:
        found = parse_size(memory_limit) if isinstance(memory_limit, str) else int(memory_limit)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"memory_limit {memory_limit!r}: expected bytes or text such as '2GiB'"
        ) from None
    if found < MIN_LIMIT_BYTES:
        raise UsageError(f"memory_limit {memory_limit!r}: give at least {MIN_LIMIT_BYTES} bytes")
    return found


def _axes(
    stage: tuple[int, int] | None, parallel: ParallelAxis | Sequence[ParallelAxis]
) -> list[ParallelAxis]:
    axes: list[Any] = [parallel] if not isinstance(parallel, Iterable) else list(parallel)
    if not all(isinstance(axis, ParallelAxis) for axis in axes):
        raise UsageError(f"parallel {parallel!r}: expected a ParallelAxis or several")
    if stage is not None:
        try:
            rank, size = map(operator.index, stage)
        except (TypeError, ValueError):
            raise UsageError(f"stage {stage!r}: expected (i, n), stage i of n") from None
        axes.append(ParallelAxis("pipeline", rank, size))
    return axes
