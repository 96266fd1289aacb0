"""p2pcache: peer-to-peer model distribution for inference fleets.

The loader's calls are attributes of the package and are imported when they are first used, so that
`import p2pcache` costs nothing: `p2pcache.load("team/llama:v3", device="cuda")`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p2pcache import errors as errors
    from p2pcache.loader import compile_cache as compile_cache
    from p2pcache.loader.api import iter_tensors as iter_tensors
    from p2pcache.loader.api import load as load
    from p2pcache.loader.api import load_into as load_into
    from p2pcache.loader.api import safe_open as safe_open
    from p2pcache.loader.format.dtypes import RawTensor as RawTensor
    from p2pcache.loader.integrations.transformers import from_pretrained as from_pretrained
    from p2pcache.loader.open_model import OpenModel as OpenModel
    from p2pcache.loader.plan.selection import ParallelAxis as ParallelAxis
    from p2pcache.loader.publish import push as push
    from p2pcache.loader.publish import save_file as save_file
    from p2pcache.loader.report import LoadReport as LoadReport
    from p2pcache.loader.resolve import snapshot as snapshot
    from p2pcache.loader.stream import TensorStream as TensorStream

__all__ = [
    "LoadReport", "OpenModel", "ParallelAxis", "RawTensor", "TensorStream", "__version__", "compile_cache", "errors",
    "from_pretrained", "iter_tensors", "load", "load_into", "push", "safe_open", "save_file", "snapshot",
]  # fmt: skip
__version__ = "0.1.0"

_LAZY = {
    "LoadReport": "p2pcache.loader.report",
    "OpenModel": "p2pcache.loader.open_model",
    "ParallelAxis": "p2pcache.loader.plan.selection",
    "RawTensor": "p2pcache.loader.format.dtypes",
    "TensorStream": "p2pcache.loader.stream",
    "from_pretrained": "p2pcache.loader.integrations.transformers",
    "iter_tensors": "p2pcache.loader.api",
    "load": "p2pcache.loader.api",
    "load_into": "p2pcache.loader.api",
    "push": "p2pcache.loader.publish",
    "safe_open": "p2pcache.loader.api",
    "save_file": "p2pcache.loader.publish",
    "snapshot": "p2pcache.loader.resolve",
}
_MODULES = {"errors": "p2pcache.errors", "compile_cache": "p2pcache.loader.compile_cache"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _LAZY:
        raise AttributeError(f"module 'p2pcache' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, *_MODULES])
