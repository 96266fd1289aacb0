"""Some modules of an engine run for real, from their wheel's source; all else of it is an empty shell.

vLLM and SGLang can't be imported without CUDA and their hundred dependencies. What our plugins touch
can: registries, plugin loading, load configuration and the default loader. A shell has every name
that it's asked for, as a class that does nothing. Use it in a process of its own.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ENGINES = Path(__file__).resolve().parents[3] / ".engines"


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__


def anything(name: str) -> Any:
    """A class that takes any arguments; its objects, as decorators, leave functions as they are."""

    def call(_: object, *args: Any, **__: Any) -> Any:
        return args[0] if args else None

    body = {"__init__": lambda *_, **__: None, "__call__": call, "__getattr__": _attribute}
    return _Anything(name, (), body)


def _attribute(_: object, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return anything(name)()


class _Shell(types.ModuleType):
    _real: frozenset[str] = frozenset()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        below = any(real == full or real.startswith(full + ".") for real in self._real)
        found = importlib.import_module(full) if below else anything(name)
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: Sequence[str], real: Sequence[str]) -> None:
        self.roots, self.real = set(roots), set(real)
        _Shell._real = frozenset(real)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self.roots:
            return None
        if name not in self.real:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        base = ENGINES.joinpath(*name.split("."))
        if base.is_dir():
            return importlib.util.spec_from_file_location(
                name, base / "__init__.py", submodule_search_locations=[str(base)]
            )
        return importlib.util.spec_from_file_location(name, base.with_suffix(".py"))

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Shell(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(roots: Sequence[str], real: Sequence[str]) -> None:
    """From now on these packages are shells, but for the modules that are real.

    Args:
        roots: top-level names: the engine, and packages it needs that aren't here.
        real: full module names.
    """
    sys.meta_path.insert(0, _Finder(roots, real))
