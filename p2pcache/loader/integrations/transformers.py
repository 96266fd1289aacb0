"""Loads transformers' models through a state dict whose tensors are read when they are used."""

import copy
from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.api import PathLike, safe_open
from p2pcache.loader.format.dtypes import import_torch, torch_dtype
from p2pcache.loader.integrations.weights import WEIGHTS
from p2pcache.loader.open_model import Index, TensorSlice
from p2pcache.loader.resolve import existing_path, pull_pinned


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
    agent: str | None = None,
    timeout_s: float | None = None,
    **kwargs: Any,
) -> Any:
    """Make a transformers model while its weights still arrive.

    Args:
        ref_or_dir: a directory, or a ref.
        auto_class: `AutoModelForCausalLM`, or any class with transformers' `from_pretrained`.
        config: the model's; None: from its config.json.
        agent: unix:///PATH or http://HOST:PORT; None: P2PCACHE_AGENT, else the default socket.
        timeout_s: of each tensor's bytes, in seconds; None: no limit.
        kwargs: for `auto_class.from_pretrained`: dtype, device_map, ...

    Raises:
        UsageError: an argument that doesn't work here.
        NotFound, InvalidHeader, Unreachable, ...: the model can't be opened.
        TimedOut: a tensor didn't arrive in time.
    """
    if kwargs.get("trust_remote_code") or "state_dict" in kwargs:
        raise UsageError(
            "no trust_remote_code and no state_dict here; give p2pcache.snapshot(ref) to "
            "transformers' own from_pretrained instead"
        )
    if not callable(getattr(auto_class, "from_pretrained", None)):
        raise UsageError(
            f"{auto_class!r} is no class of transformers; give AutoModelForCausalLM or the like"
        )
    folder, weights = existing_path(ref_or_dir), ref_or_dir
    if folder is None:
        folder, pinned = pull_pinned(str(ref_or_dir), exclude=WEIGHTS, agent=agent)
        weights = str(pinned)
    from transformers import AutoConfig, GenerationConfig

    config = config if config is not None else AutoConfig.from_pretrained(folder)
    auto_class, config = _concrete(auto_class, config)
    with safe_open(weights, agent=agent, timeout_s=timeout_s) as found:
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
