"""Loads transformers' models: a complete one its own way, an arriving one tensor by tensor as they are used."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.api import PathLike, safe_open
from p2pcache.loader.format.dtypes import import_torch, torch_dtype
from p2pcache.loader.integrations.weights import WEIGHTS
from p2pcache.loader.memory.backend import cuda_device
from p2pcache.loader.open_model import Index, OpenModel, TensorSlice
from p2pcache.loader.resolve import existing_path, pull_pinned
from p2pcache.loader.session import Memory

_ITS_FILE, _ITS_INDEX = "model.safetensors", "model.safetensors.index.json"
_SNAPSHOT = "give p2pcache.snapshot(ref) to transformers' own from_pretrained instead"
_REVISIONS = (None, "main")  # transformers' default, which callers may pass on


class LazyTensor:
    """A tensor of an open model that is read when it is indexed, as transformers' loading expects it."""

    def __init__(self, part: TensorSlice) -> None:
        """Read nothing yet."""
        self._part = part

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        return self._part[index]

    def get_shape(self) -> list[int]:
        """The shape in elements."""
        return self._part.get_shape()

    def get_dtype(self) -> str:
        """Safetensors' word for the dtype."""
        return self._part.get_dtype()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in elements."""
        return tuple(self._part.get_shape())

    @property
    def dtype(self) -> Any:
        """The torch dtype; `dtype="auto"` uses it if the config has none."""
        return torch_dtype(self._part.get_dtype())

    def is_floating_point(self) -> bool:
        """As `torch.Tensor.is_floating_point`."""
        return bool(self.dtype.is_floating_point)


def from_pretrained(
    ref_or_dir: PathLike,
    auto_class: Any,
    *,
    config: Any = None,
    subfolder: str = "",
    memory: Memory = "auto",
    agent: str | None = None,
    timeout_s: float | None = None,
    **kwargs: Any,
) -> Any:
    """Make a transformers model, while its weights still arrive if need be.

    A model that is complete here is given to transformers' own `from_pretrained`, which maps its files. Those of
    an arriving one go through pinned memory where `device_map` is one GPU.

    Args:
        ref_or_dir: a directory, or a ref.
        auto_class: `AutoModelForCausalLM`, or any class with transformers' `from_pretrained`.
        config: the model's; None: from its config.json.
        subfolder: the folder that has it, such as "text_encoder" of a pipeline; "": it lies at the top.
        memory: "private": parameters on the host have memory of their own; else see `iter_tensors`.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: of each tensor's bytes, in seconds; None: no limit.
        kwargs: for `auto_class.from_pretrained`: dtype, device_map, ...

    Raises:
        UsageError: an argument that doesn't work here.
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
        TimedOut: a tensor didn't arrive in time.
    """
    if kwargs.get("trust_remote_code") or "state_dict" in kwargs:
        raise UsageError(f"no trust_remote_code and no state_dict here; {_SNAPSHOT}")
    # transformers ignores it in a directory, so other weights than were meant would be loaded.
    if kwargs.pop("revision", None) not in _REVISIONS:
        raise UsageError(
            "no revision here; the ref names the version, as in team/llama:v3, and a directory has one"
        )
    if not callable(getattr(auto_class, "from_pretrained", None)):
        raise UsageError(
            f"{auto_class!r} is no class of transformers; give AutoModelForCausalLM or the like"
        )
    folder, weights = existing_path(ref_or_dir), ref_or_dir
    if folder is None:
        _refuse_variant(kwargs)
        folder, pinned = pull_pinned(str(ref_or_dir), exclude=WEIGHTS, agent=agent)
        weights = str(pinned)
    device = _one_gpu(kwargs.get("device_map"))
    with safe_open(
        weights, device=device or "cpu", subfolder=subfolder, memory=memory, agent=agent,
        timeout_s=timeout_s,
    ) as found:  # fmt: skip
        whole = found.directory
        if memory == "auto" and whole is not None and _can_take(whole / subfolder):
            return _its_own_way(auto_class, whole / subfolder, config, kwargs)
        return _tensor_by_tensor(auto_class, found, folder / subfolder, config, kwargs)


def _refuse_variant(kwargs: Mapping[str, Any]) -> None:
    """Check that no variant is wanted: transformers ignores it where it gets tensors instead of files."""
    if kwargs.get("variant") is not None:
        raise UsageError(f"no variant here; {_SNAPSHOT}")


def _one_gpu(device_map: Any) -> str | None:
    """The one GPU that a `device_map` names; None: several devices, a word such as "auto", no GPU that is here."""
    if isinstance(device_map, Mapping):
        if set(device_map) != {""}:
            return None
        device_map = device_map[""]
    if device_map is None or isinstance(device_map, bool):
        return None
    word = f"cuda:{device_map}" if isinstance(device_map, int) else str(device_map)
    if not word.startswith("cuda"):
        return None
    try:
        return str(cuda_device(word))
    except UsageError:  # transformers says it better
        return None


def _can_take(folder: Path) -> bool:
    """Whether transformers itself finds the weights: it reads no other names, and no index without metadata."""
    if (folder / _ITS_FILE).is_file():
        return True
    try:
        return "metadata" in json.loads((folder / _ITS_INDEX).read_bytes())
    except FileNotFoundError:
        return False


def _its_own_way(auto_class: Any, folder: Path, config: Any, kwargs: Mapping[str, Any]) -> Any:
    more = dict(kwargs)
    if config is not None:
        more["config"] = config
    if hasattr(auto_class, "from_config"):  # an auto class would ask at the terminal
        more["trust_remote_code"] = False
    return auto_class.from_pretrained(folder, **more)


def _tensor_by_tensor(
    auto_class: Any, found: OpenModel, folder: Path, config: Any, kwargs: Mapping[str, Any]
) -> Any:
    from transformers import AutoConfig, GenerationConfig

    _refuse_variant(kwargs)
    if config is None:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    auto_class, config = _concrete(auto_class, config)
    lazy = {name: LazyTensor(found.get_slice(name)) for name in found.keys()}  # noqa: SIM118
    model = auto_class.from_pretrained(None, config=config, state_dict=lazy, **kwargs)
    made = model[0] if isinstance(model, tuple) else model  # output_loading_info=True
    if (folder / "generation_config.json").is_file() and hasattr(made, "generation_config"):
        made.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _concrete(auto_class: Any, config: Any) -> tuple[Any, Any]:
    """The class behind an auto class, and the config that it takes.

    An auto class needs a path, where it looks for files. A concrete class doesn't.
    """
    if not hasattr(auto_class, "from_config"):
        return auto_class, config
    with import_torch().device("meta"):  # without memory for weights
        found = type(auto_class.from_config(copy.deepcopy(config)))
    fits = found.config_class is None or isinstance(config, found.config_class)
    return found, config if fits else config.get_text_config()
