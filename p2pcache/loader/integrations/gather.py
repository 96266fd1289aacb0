"""One model for all workers of a tensor-parallel group: each reads a share of it and gives that to all the others.

Without it each worker brings all of the model over its own link to its GPU, or copies all of it through
host memory. The workers go through the load in step, round by round, as engines' workers do anyway. What
fails in one of them fails in all, since the others would wait for it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from p2pcache.errors import P2PCacheError
from p2pcache.loader.format.dtypes import import_torch
from p2pcache.loader.format.header import TensorInfo
from p2pcache.loader.plan.batches import ALIGN_BYTES, DEVICE_BATCH_BYTES

ROUND_BYTES = (
    DEVICE_BATCH_BYTES  # that each worker gives in a round; a larger tensor is a round alone
)


class Groups(NamedTuple):
    """The same workers twice, as groups of torch.distributed."""

    device: Any  # moves tensors between devices
    host: Any  # moves small objects


class _Part(NamedTuple):
    """A tensor in the bytes that a worker gives."""

    name: str
    offset: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]


class _Round(NamedTuple):
    """What a worker says before it gives its bytes."""

    parts: list[_Part]  # [] at its end
    nbytes: int  # of all parts, with padding
    error: str  # "": none


def share(tensors: Iterable[TensorInfo], rank: int, size: int) -> list[TensorInfo]:
    """A worker's share: every `size`th stretch of about `ROUND_BYTES`, so that all are about as far at a time.

    Args:
        tensors: of the model, in the order in which they should come.
        rank: of the worker.
        size: of the group.
    """
    found, position = [], 0
    for info in tensors:
        if position // ROUND_BYTES % size == rank:
            found.append(info)
        position += max(info.nbytes, 1)
    return found


def gathered(
    mine: Iterator[tuple[str, Any]], groups: Groups, device: str
) -> Iterator[tuple[str, Any]]:
    """Iterate over (name, tensor) of all workers, in the same order in each of them.

    Args:
        mine: of this worker's share, on the device.
        groups: all workers.
        device: of the tensors.

    Raises:
        P2PCacheError: this worker's own error, or that of another one.
    """
    dist = import_torch().distributed
    ranks = dist.get_process_group_ranks(groups.device)
    me = dist.get_rank(groups.device)
    while True:
        error: P2PCacheError | None = None
        taken: list[tuple[str, Any]] = []
        try:
            taken = _take(mine)
        except P2PCacheError as failure:
            error = failure
        parts = _placed(taken)
        told: list[Any] = [None] * len(ranks)
        nbytes = _padded(parts[-1]) if parts else 0
        dist.all_gather_object(told, _Round(parts, nbytes, str(error or "")), group=groups.host)
        if error is not None:
            raise error
        for number, said in enumerate(told):
            if said.error:
                raise P2PCacheError(f"worker {number} of {len(ranks)} failed: {said.error}")
        if not any(said.parts for said in told):
            return
        yield from _exchange(_packed(taken, told[me], device), told, me, ranks, groups, device)


def _take(mine: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The tensors of a round."""
    taken: list[tuple[str, Any]] = []
    nbytes = 0
    while nbytes < ROUND_BYTES and (following := next(mine, None)) is not None:
        taken.append(following)
        nbytes += following[1].nbytes
    return taken


def _placed(taken: Sequence[tuple[str, Any]]) -> list[_Part]:
    parts: list[_Part] = []
    for name, tensor in taken:
        offset = _padded(parts[-1]) if parts else 0
        parts.append(_Part(name, offset, tensor.nbytes, tensor.dtype, tuple(tensor.shape)))
    return parts


def _padded(part: _Part) -> int:
    return part.offset + -(-part.nbytes // ALIGN_BYTES) * ALIGN_BYTES


def _packed(taken: list[tuple[str, Any]], said: _Round, device: str) -> Any:
    """This worker's tensors as one, each at its place; the list is emptied, so that no tensor lives twice."""
    torch = import_torch()
    flat = torch.empty(said.nbytes, dtype=torch.uint8, device=device)
    for part, (_, tensor) in zip(said.parts, taken, strict=True):
        flat[part.offset : part.offset + part.nbytes] = tensor.reshape(-1).view(torch.uint8)
    taken.clear()
    return flat


def _exchange(
    flat: Any, told: Sequence[_Round], me: int, ranks: Sequence[int], groups: Groups, device: str
) -> Iterator[tuple[str, Any]]:
    torch = import_torch()
    begun = []
    for number, said in enumerate(told):
        if said.parts:
            buffer = (
                flat if number == me else torch.empty(said.nbytes, dtype=torch.uint8, device=device)
            )
            work = torch.distributed.broadcast(
                buffer, src=ranks[number], group=groups.device, async_op=True
            )
            begun.append((work, buffer, said))
    for work, buffer, said in begun:
        work.wait()
        for name, offset, nbytes, dtype, shape in said.parts:
            yield name, buffer[offset : offset + nbytes].view(dtype).reshape(shape)
