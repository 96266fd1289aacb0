"""The loader's public calls. `import p2pcache` offers them; torch and numpy are imported when used.

Whatever takes a `ref_or_dir` takes an existing directory or .safetensors file (no agent needed),
or a ref such as "team/llama:v3", which the node's agent pulls while tensors are handed out already.
"""

import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from p2pcache.core.units import parse_size
from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import Framework
from p2pcache.loader.memory.backend import cuda_device
from p2pcache.loader.open_model import OpenModel
from p2pcache.loader.plan.placement import prepare
from p2pcache.loader.plan.selection import Filter, ParallelAxis, choose
from p2pcache.loader.report import LoadReport
from p2pcache.loader.resolve import Fetch
from p2pcache.loader.session import open_session
from p2pcache.loader.stream import (
    MIN_LIMIT_BYTES,
    TensorStream,
    Tuning,
    check_framework,
    start,
    start_into,
)

PathLike = str | os.PathLike[str]


class TorchDevice(Protocol):
    """A torch.device, for type checkers that have no torch."""

    @property
    def type(self) -> str:
        """Such as "cuda"."""
        ...


Device = str | int | TorchDevice
# A few of the usual tensors. On the host more means more first touches, which take longer than the
# reads: 2.2 GB came in 1.8 s with 64 MiB and in 2.8 s with 256. A device takes so much in milliseconds.
HOST_LIMIT, DEVICE_LIMIT = "64MiB", "256MiB"


def safe_open(
    ref_or_dir: PathLike,
    framework: Framework = "pt",
    device: Device = "cpu",
    *,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
) -> OpenModel:
    """Open a model to look at its tensors one by one, as `safetensors.safe_open` does for a file.

    Args:
        ref_or_dir: a directory, a file, or a ref.
        framework: "pt" (torch), "np" (numpy) or "raw" (`RawTensor`).
        device: where tensors go: "cpu", "cuda", "cuda:1", a torch.device; a number is that GPU.
        fetch: "all": the whole model comes to this node; "needed": only what is asked for.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: how long to wait for bytes that still arrive; None: as long as it takes.

    Raises:
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
    """
    device = check_framework(framework, device)
    if device != "cpu":
        cuda_device(device)
    session = open_session(ref_or_dir, agent, fetch, timeout_s)
    return OpenModel(session, framework, device, timeout_s)


def iter_tensors(
    ref_or_dir: PathLike,
    *,
    device: Device = "cpu",
    framework: Framework = "pt",
    filter: Filter | None = None,  # noqa: A002  # the name that other loaders use
    stage: tuple[int, int] | None = None,
    parallel: ParallelAxis | Sequence[ParallelAxis] = (),
    memory_limit: int | str | None = None,
    owned: bool = True,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
    tuning: Tuning | None = None,
) -> TensorStream:
    """Bring tensors as their bytes arrive: an iterator of (name, tensor), early layers first.

    Args:
        ref_or_dir: a directory, a file, or a ref.
        device: where tensors go: "cpu", "cuda", "cuda:1", a torch.device; a number is that GPU.
        framework: "pt" (torch), "np" (numpy) or "raw" (`RawTensor`).
        filter: glob, globs, or a function of the name: which tensors to bring.
        stage: (i, n): only stage i of n of a pipeline; short for a "pipeline" axis.
        parallel: this process' places in parallel groups; see `ParallelAxis`.
        memory_limit: bytes, or text such as "2GiB": bounds what the loader holds itself, tensors
            that are read but not yet taken, and the pinned ring. Host and device each. A single
            tensor that is larger is brought all the same, alone. None: 64 MiB on the host, 256 MiB
            on a device.
        owned: True: tensors own their memory. False: each is valid only until the next is asked
            for, and its memory is used again.
        fetch: "all": the whole model comes to this node; "needed": only what this load reads.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: the time limit of the whole load; None: as long as it takes.
        tuning: for measurements.

    Raises:
        UsageError: arguments that can't be.
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
    """
    device = check_framework(framework, device)
    limit_bytes = _limit(memory_limit, HOST_LIMIT if device == "cpu" else DEVICE_LIMIT)
    axes = _axes(stage, parallel)
    session = open_session(ref_or_dir, agent, fetch, timeout_s)
    try:
        return start(
            session,
            choose(list(session.catalog.tensors.values()), filter, axes),
            device=device,
            framework=framework,
            limit_bytes=limit_bytes,
            owned=owned,
            tuning=tuning or Tuning(),
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
    memory_limit: int | str | None = None,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    """All tensors of a model, by name; the arguments are those of `iter_tensors`.

    Raises:
        P2PCacheError: as `iter_tensors`, and what stops a load midway.
    """
    with iter_tensors(
        ref_or_dir,
        device=device,
        framework=framework,
        filter=filter,
        stage=stage,
        parallel=parallel,
        memory_limit=memory_limit,
        fetch=fetch,
        agent=agent,
        timeout_s=timeout_s,
    ) as stream:
        return dict(stream)


def load_into(
    module_or_dict: Any,
    ref_or_dir: PathLike,
    strict: bool = True,  # noqa: FBT001, FBT002  # as torch's load_state_dict has it
    *,
    filter: Filter | None = None,  # noqa: A002
    stage: tuple[int, int] | None = None,
    parallel: ParallelAxis | Sequence[ParallelAxis] = (),
    memory_limit: int | str | None = None,
    fetch: Fetch = "all",
    agent: str | None = None,
    timeout_s: float | None = None,
    tuning: Tuning | None = None,
) -> LoadReport:
    """Bring a model's bytes into tensors that exist already, with no copy between where that's possible.

    Names, shapes and kinds are checked before the first byte is written. When the load fails
    later, the targets hold a mixture: load again or drop them.

    Args:
        module_or_dict: a torch module, or names to torch tensors, numpy arrays or bytearrays.
        ref_or_dir: a directory, a file, or a ref.
        strict: every name of one side must be on the other; names that share memory count as one.
        filter: this and the rest as in `iter_tensors`; strictness is about what they leave.
        stage: see there.
        parallel: see there; targets have the shapes of the slices.
        memory_limit: bounds what must be converted, and the pinned ring; the rest needs no memory.
            None: 64 MiB.
        fetch: see there.
        agent: see there.
        timeout_s: see there.
        tuning: see there.

    Returns:
        The figures of the load, and with strict=False what had no partner: `missing_keys` of the
        target, `unexpected_keys` of the model.

    Raises:
        UsageError: names, shapes or targets that don't fit.
        P2PCacheError: as `iter_tensors`.
    """
    limit_bytes = _limit(memory_limit, HOST_LIMIT)
    axes = _axes(stage, parallel)
    session = open_session(ref_or_dir, agent, fetch, timeout_s)
    try:
        wants = choose(list(session.catalog.tensors.values()), filter, axes)
        plan = prepare(module_or_dict, wants, strict=strict)
        stream = start_into(session, plan, limit_bytes, tuning or Tuning())
        stream.report.missing_keys = plan.missing
        stream.report.unexpected_keys = plan.unexpected
    except BaseException:
        session.source.close()
        raise
    with stream:
        for _ in stream:
            pass
    return stream.report


def _limit(told: int | str | None, default: str) -> int:
    memory_limit = default if told is None else told
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
