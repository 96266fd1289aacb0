"""`load_into`: which tensor of the model goes into which of the caller's, decided before a byte moves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import Framework, torch_dtype
from p2pcache.loader.format.header import shown
from p2pcache.loader.memory.tensors import flat_bytes, framework_of, writable_bytes
from p2pcache.loader.plan.selection import Want
from p2pcache.loader.report import left_over


@dataclass(slots=True)
class Placement:
    """Where each wanted tensor goes."""

    wants: list[Want] = field(default_factory=list)
    targets: dict[str, Any] = field(default_factory=dict)
    views: dict[str, memoryview] = field(default_factory=dict)  # read straight into
    buffers: dict[str, Any] = field(default_factory=dict)  # copied straight into, on one device
    converted: Framework | None = None  # the framework of the rest, if there is any
    missing: list[str] = field(default_factory=list)  # of the caller's: nothing is there for them
    unexpected: list[str] = field(default_factory=list)  # of the model's: no place for them

    def kind(self, name: str) -> int:
        """0: straight in, 1: by the ring, 2: converted. Batches don't mix them."""
        return 0 if name in self.views else 1 if name in self.buffers else 2


def prepare(module_or_dict: Any, wants: Sequence[Want], *, strict: bool) -> Placement:
    """Match names and check kinds and shapes.

    Raises:
        UsageError: what doesn't fit, by name.
    """
    targets = _targets(module_or_dict)
    chosen = [want for want in wants if want.info.name in targets]
    placement = Placement()
    _compare(targets, [want.info.name for want in wants], placement)
    told = left_over(placement.missing, placement.unexpected)
    if strict and told:
        raise UsageError(f"{told}; strict=False ignores them")
    by_memory = {_memory(targets[want.info.name]): want for want in chosen}  # the last one counts
    for want in by_memory.values():
        try:
            _place(placement, want, targets[want.info.name])
        except UsageError as error:
            raise UsageError(f"{shown(want.info.name)}: {error}") from None
    return placement


def _targets(module_or_dict: Any) -> Mapping[str, Any]:
    if isinstance(module_or_dict, Mapping):
        return module_or_dict
    if callable(getattr(module_or_dict, "state_dict", None)):
        found: Mapping[str, Any] = module_or_dict.state_dict(keep_vars=True)
        return found
    raise UsageError(
        f"can't load into a {type(module_or_dict).__name__}; give a torch module or a dict of tensors"
    )


def _compare(targets: Mapping[str, Any], names: Sequence[str], placement: Placement) -> None:
    placement.unexpected = [name for name in names if name not in targets]
    filled = {_memory(targets[name]) for name in names if name in targets}
    placement.missing = [name for name, target in targets.items() if _memory(target) not in filled]


def _memory(target: Any) -> tuple[Any, ...]:
    """What makes two names one: the same view of the same memory."""
    address = _address(target)
    if not address:
        return (id(target),)
    return (target.device, address, tuple(target.shape), target.stride())


def _address(target: Any) -> int:
    """Of a torch tensor's memory; 0: none of its own (meta, sparse, a DTensor), or no torch tensor."""
    try:
        return int(target.data_ptr())
    except (AttributeError, RuntimeError):
        return 0


def _place(placement: Placement, want: Want, target: Any) -> None:
    name, dtype = want.info.name, want.info.dtype
    kind = framework_of(target)
    if kind == "pt" and target.device.type == "meta":
        raise UsageError("is on the meta device; give it memory first, with to_empty(device=...)")
    if kind == "pt" and target.numel() and not _address(target):
        raise UsageError(
            f"is no plain tensor ({type(target).__name__}, {target.layout}); give its to_dense(), "
            "or of a DTensor its to_local()"
        )
    view = writable_bytes(target, dtype, want.shape)
    placement.wants.append(want)
    placement.targets[name] = target
    if view is not None:
        if view.nbytes != want.nbytes:
            raise UsageError(f"the target has {view.nbytes} bytes, the model {want.nbytes}")
        placement.views[name] = view
        return
    if kind == "pt" and target.device.type == "cuda" and target.dtype == torch_dtype(dtype):
        first = next(iter(placement.buffers.values()), target)
        # one ring serves one device; what lies on a second one goes through host memory
        flat = flat_bytes(target) if target.device == first.device else None
        if flat is not None:
            placement.buffers[name] = flat
            return
    if placement.converted not in (None, kind):
        raise UsageError("torch and numpy targets both need a conversion; load them one by one")
    placement.converted = kind
