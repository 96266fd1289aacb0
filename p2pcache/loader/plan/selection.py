"""Which tensors of a model a load brings, and which part of each.

The shares of a parallel group are those of Megatron-LM (Shoeybi and others 2019): equal slices for
tensor parallelism, consecutive layers for pipeline parallelism, whole experts for expert parallelism.
"""

import fnmatch
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

from p2pcache.errors import NotFound, UsageError
from p2pcache.loader.format.dtypes import BITS
from p2pcache.loader.format.header import TensorInfo, shown

_log = logging.getLogger(__name__)

Filter = str | Iterable[str] | Callable[[str], bool]
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|blocks|block|h)\.(\d+)\.")
_EXPERT = re.compile(r"(?:^|\.)experts\.(\d+)\.")
_INPUT = re.compile(
    r"(?:^|[._])(?:embed|embeddings|embed_tokens|wte|wpe|tok_embeddings|emb)(?:[._]|$)"
)
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|output|embed_out)\.")


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """This process is `rank` of `size` along one way of splitting a model.

    "tensor": of each tensor whose name matches, the rank's equal slice along `dim`.
    "pipeline": the layers of the stage, in even consecutive shares. Tensors before the layers belong
    to the first stage, tensors after them to the last. A model without an output layer uses its
    embedding for that, so the last stage gets it, too.
    "expert": of tensors named `...experts.N...` the rank's share of the numbers N.
    """

    kind: Literal["tensor", "pipeline", "expert"]
    rank: int
    size: int
    dim: int = 0  # of "tensor" only
    names: str = "*"  # of "tensor" only: a glob

    def __post_init__(self) -> None:
        if self.kind not in ("tensor", "pipeline", "expert"):
            raise UsageError(f"kind {self.kind!r}: expected tensor, pipeline or expert")
        numbers: tuple[Any, ...] = (self.rank, self.size, self.dim)  # callers aren't type-checked
        if not all(isinstance(number, SupportsIndex) for number in numbers):
            raise UsageError(f"{self}: rank, size and dim are whole numbers")
        if not isinstance(self.names, str):
            raise UsageError(f"{self}: names is one glob; give an axis for each")
        if not 0 <= self.rank < self.size:
            raise UsageError(f"rank {self.rank} of {self.size}: expected 0 <= rank < size")


class LoadItem(NamedTuple):
    """A tensor, or a slice of it, that a load brings. In the file it is one or more equal segments."""

    info: TensorInfo
    shape: tuple[int, ...]  # of the slice, in elements
    start: int  # byte offset of the first segment in the file
    length: int  # of each segment, in bytes
    stride: int  # bytes from the start of one segment to the start of the next
    segments: int  # how many

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.segments * self.length


def whole_tensor(info: TensorInfo) -> LoadItem:
    """All of a tensor."""
    return LoadItem(info, info.shape, info.start, info.nbytes, 0, 1)


def cut_tensor(info: TensorInfo, dim: int, start: int, stop: int) -> LoadItem:
    """The slice [start, stop) of a tensor along one dimension.

    Args:
        info: the tensor.
        dim: the dimension; negative ones count from the last.
        start: index of the first element, inside the shape.
        stop: index after the last element, inside the shape.

    Raises:
        UsageError: no such dimension; or an element smaller than a byte would begin inside a byte.
    """
    if not -len(info.shape) <= dim < len(info.shape):
        raise UsageError(
            f"{shown(info.name)} has the shape {list(info.shape)} and no dimension {dim}"
        )
    dim %= len(info.shape)
    outer = 1
    for length in info.shape[:dim]:
        outer *= length
    inner_bits = BITS[info.dtype]
    for length in info.shape[dim + 1 :]:
        inner_bits *= length
    edges = (start * inner_bits, stop * inner_bits, info.shape[dim] * inner_bits)
    if any(edge % 8 for edge in edges):
        raise UsageError(f"{shown(info.name)}: {info.dtype} can't be cut there, inside a byte")
    low, high, stride = (edge // 8 for edge in edges)
    shape = (*info.shape[:dim], stop - start, *info.shape[dim + 1 :])
    if outer == 1 or high - low == stride:
        return LoadItem(info, shape, info.start + low, (high - low) * outer, 0, 1)
    if outer == 0 or low == high:
        return LoadItem(info, shape, info.start, 0, 0, 1)
    return LoadItem(info, shape, info.start + low, high - low, stride, outer)


def select_tensors(
    tensors: Sequence[TensorInfo],
    names: Filter | None = None,
    axes: Sequence[ParallelAxis] = (),
) -> list[LoadItem]:
    """The tensors, or slices of them, that a load brings, in the given order.

    Args:
        tensors: all of the model.
        names: a glob, several (any may match), or a function of the name; None takes all.
        axes: this process' places in parallel groups. Of two "tensor" axes that match a name the
            first counts.

    Raises:
        NotFound: globs match no tensor of the model. (A function that matches none is no error.)
        UsageError: `size` doesn't divide a dimension.
    """
    kept = _matching(tensors, names)
    for axis in axes:
        if axis.kind == "pipeline":
            kept = _stage(kept, tensors, axis)
        elif axis.kind == "expert":
            kept = _experts(kept, tensors, axis)
    cuts = [axis for axis in axes if axis.kind == "tensor"]
    for axis in cuts:
        # No error: callers share axes between families of models.
        if axis.size > 1 and not any(fnmatch.fnmatchcase(t.name, axis.names) for t in tensors):
            _log.warning("%s matches no tensor of the model, so it cuts none", axis)
    return [_item_of(info, cuts) for info in kept]


def _globs(names: str | Iterable[str]) -> list[str]:
    several = isinstance(names, Iterable) and not isinstance(names, str)
    globs: list[Any] = list(names) if several else [names]
    if not all(isinstance(glob, str) for glob in globs):
        raise UsageError(f"filter {names!r}: expected a glob, several, or a function of the name")
    return globs


def _matching(tensors: Sequence[TensorInfo], names: Filter | None) -> list[TensorInfo]:
    if names is None:
        return list(tensors)
    if callable(names):
        return [info for info in tensors if names(info.name)]
    globs = _globs(names)
    pattern = re.compile("|".join(fnmatch.translate(glob) for glob in globs) or r"(?!)")
    found = [info for info in tensors if pattern.match(info.name)]
    if globs and not found:
        listed = ", ".join(shown(glob) or "''" for glob in globs)
        raise NotFound(
            f"none of the {len(tensors)} tensors matches {listed}; globs are for whole names, such as '*.mlp.*'"
        )
    return found


def _item_of(info: TensorInfo, cuts: Sequence[ParallelAxis]) -> LoadItem:
    for axis in cuts:
        if not fnmatch.fnmatchcase(info.name, axis.names):
            continue
        if not -len(info.shape) <= axis.dim < len(info.shape):
            raise UsageError(
                f"{shown(info.name)} has the shape {list(info.shape)} and no dimension {axis.dim}; "
                "narrow the axis' names"
            )
        share, rest = divmod(info.shape[axis.dim], axis.size)
        if rest:
            raise UsageError(
                f"{shown(info.name)}: {axis.size} ranks can't share {info.shape[axis.dim]} rows of "
                f"dimension {axis.dim} evenly; cut it by hand with safe_open(...).get_slice"
            )
        return cut_tensor(info, axis.dim, axis.rank * share, (axis.rank + 1) * share)
    return whole_tensor(info)


def _share(number: int, total: int, size: int) -> int:
    """The rank to which `number` of `total` belongs, in even consecutive shares."""
    return number * size // total


def _stage(
    kept: list[TensorInfo], tensors: Sequence[TensorInfo], axis: ParallelAxis
) -> list[TensorInfo]:
    layers = [_number(_LAYER, t.name) for t in tensors]
    total = max((n for n in layers if n is not None), default=-1) + 1
    tied = not any(_OUTPUT.search(t.name) for t in tensors)
    first, last = axis.rank == 0, axis.rank == axis.size - 1

    def mine(name: str) -> bool:
        layer = _number(_LAYER, name)
        if layer is not None:
            return _share(layer, total, axis.size) == axis.rank
        if _INPUT.search(name):
            return first or (last and tied)
        return last

    return [t for t in kept if mine(t.name)]


def _experts(
    kept: list[TensorInfo], tensors: Sequence[TensorInfo], axis: ParallelAxis
) -> list[TensorInfo]:
    numbers = [_number(_EXPERT, t.name) for t in tensors]
    total = max((n for n in numbers if n is not None), default=-1) + 1

    def mine(name: str) -> bool:
        number = _number(_EXPERT, name)
        return number is None or _share(number, total, axis.size) == axis.rank

    return [t for t in kept if mine(t.name)]


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.search(name)
    return int(found[1]) if found and len(found[1]) <= 9 else None
