"""For `load_into`: which tensor of the model goes into which of the caller's, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import Framework, torch_dtype
from p2pcache.loader.format.header import shown
from p2pcache.loader.memory.tensors import flat_bytes, framework_of, writable_bytes
from p2pcache.loader.plan.selection import LoadItem
from p2pcache.loader.report import left_over


class Transfer(IntEnum):
    """How bytes reach a target. All items of a batch have the same way."""

    DIRECT = 0  # read straight into the target's host memory
    STAGED = 1  # through the ring into the target's device memory
    CONVERTED = 2  # read into a tensor of the model's dtype, then copied


@dataclass(slots=True)
class Placement:
    """Where each item of a load goes. All keys are tensors' names."""

    items: list[LoadItem] = field(default_factory=list)
    targets: dict[str, Any] = field(default_factory=dict)
    views: dict[str, memoryview] = field(default_factory=dict)  # of DIRECT targets
    buffers: dict[str, Any] = field(default_factory=dict)  # of STAGED targets, all on one device
    converted: Framework | None = None  # of the CONVERTED targets, if there are any
    missing: list[str] = field(default_factory=list)  # targets that the model has no tensor for
    unexpected: list[str] = field(default_factory=list)  # tensors that have no target

    def transfer(self, name: str) -> Transfer:
        """How the tensor reaches its target."""
        if name in self.views:
            return Transfer.DIRECT
        return Transfer.STAGED if name in self.buffers else Transfer.CONVERTED


def plan_placement(module_or_dict: Any, items: Sequence[LoadItem], *, strict: bool) -> Placement:
    """Match names, and check kinds and shapes, before a byte moves.

    Args:
        module_or_dict: a torch module, or names to torch tensors, numpy arrays or buffers.
        items: what the load brings.
        strict: each target must have an item and each item a target; targets that share memory count
            as one.

    Raises:
        UsageError: names, kinds or shapes don't fit; the message has the tensor's name.
    """
    targets = _targets(module_or_dict)
    chosen = [item for item in items if item.info.name in targets]
    placement = Placement()
    _compare(targets, [item.info.name for item in items], placement)
    unmatched = left_over(placement.missing, placement.unexpected)
    if strict and unmatched:
        raise UsageError(f"{unmatched}; strict=False ignores them")
    # Of tied names the last one is filled.
    by_memory = {_memory(targets[item.info.name]): item for item in chosen}
    _refuse_other_signs(by_memory)
    for item in by_memory.values():
        try:
            _place(placement, item, targets[item.info.name])
        except UsageError as error:
            raise UsageError(f"{shown(item.info.name)}: {error}") from None
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


def _refuse_other_signs(by_memory: Mapping[tuple[Any, ...], LoadItem]) -> None:
    names: dict[tuple[Any, ...], str] = {}
    for key, item in by_memory.items():
        name = item.info.name
        other = names.setdefault(key[:-2], name)
        if other != name:
            raise UsageError(
                f"{shown(name)}: shares its memory with {shown(other)}, of which it shows other values "
                "(a conjugate, or a negative); clone it"
            )


def _memory(target: Any) -> tuple[Any, ...]:
    """Equal for two names of one tensor: the same view of the same memory. The last two say which values it shows."""
    address = _address(target)
    if not address:
        return (id(target), False, False)
    place = (target.device, address, tuple(target.shape), target.stride())
    return (*place, target.is_conj(), target.is_neg())


def _address(target: Any) -> int:
    """Address of a torch tensor's memory; 0: it has none of its own (meta, sparse, a DTensor)."""
    try:
        return int(target.data_ptr())
    except (AttributeError, RuntimeError):
        return 0


def _place(placement: Placement, item: LoadItem, target: Any) -> None:
    name, dtype = item.info.name, item.info.dtype
    kind = framework_of(target)
    if kind == "pt" and target.device.type == "meta":
        raise UsageError("is on the meta device; give it memory first, with to_empty(device=...)")
    if kind == "pt" and target.numel() and not _address(target):
        raise UsageError(
            f"is no plain tensor ({type(target).__name__}, {target.layout}); give its to_dense(), "
            "or of a DTensor its to_local()"
        )
    view = writable_bytes(target, dtype, item.shape)
    placement.items.append(item)
    placement.targets[name] = target
    if view is not None:
        if view.nbytes != item.nbytes:
            raise UsageError(f"the target has {view.nbytes} bytes, the model {item.nbytes}")
        placement.views[name] = view
        return
    if kind == "pt" and target.device.type == "cuda" and target.dtype == torch_dtype(dtype):
        first = next(iter(placement.buffers.values()), target)
        # One ring serves one device; targets on a second one are converted from host memory.
        flat = flat_bytes(target) if target.device == first.device else None
        if flat is not None:
            placement.buffers[name] = flat
            return
    if placement.converted not in (None, kind):
        raise UsageError("torch and numpy targets both need a conversion; load them one by one")
    placement.converted = kind
