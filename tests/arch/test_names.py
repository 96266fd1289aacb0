"""A public method name has one meaning: few unrelated classes share it."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.arch.test_house import ROOT, sources

MOST = 4  # families of classes that may share one method name
COMMON = {"check", "close", "start", "stop", "next_wakeup", "handle"}  # one meaning everywhere

Key = tuple[str, str]  # module and class; the module is "" for a class of another program


@dataclass(frozen=True)
class Class:
    key: Key
    bases: list[Key]
    methods: dict[str, tuple[str, ...]]  # own public ones, with the names of their parameters


def parameters(method: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Names of a method's parameters without self, and without the mark of what isn't used."""
    listed = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
    return tuple(each.arg.lstrip("_") for each in listed if each.arg not in ("self", "cls"))


def is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = [ast.unparse(each) for each in method.decorator_list]
    return any("property" in mark or mark.endswith((".setter", ".deleter")) for mark in marks)


def classes_in(module: str, text: str) -> Iterator[Class]:
    tree = ast.parse(text)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def key_of(base: ast.expr) -> Key:
        written = base.value if isinstance(base, ast.Subscript) else base  # without type arguments
        scope, _, name = ast.unparse(written).rpartition(".")
        if scope:
            found = ".".join(imported.get(scope, ("", scope))), name
        else:
            found = (module, name) if name in own else imported.get(name, ("", name))
        return found if found[0].startswith("p2pcache.") else ("", name)

    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            functions = [
                f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            yield Class(
                (module, node.name),
                [key_of(base) for base in node.bases],
                {
                    function.name: parameters(function)
                    for function in functions
                    if not function.name.startswith("_") and not is_property(function)
                },
            )


class Program:
    """All classes, and which of them mean the same by a method name."""

    def __init__(self, classes: list[Class]) -> None:
        self.classes = {each.key: each for each in classes}
        names = {name for _, name in self.classes}
        for each in classes:
            missed = [b for b in each.bases if b[0] and b not in self.classes and b[1] in names]
            assert not missed, f"{each.key} imports its base from a module that doesn't define it"
        everything = {name for each in classes for name in each.methods}
        self.families = {name: self._families(name) for name in everything}

    def _ancestors(self, key: Key) -> list[Key]:
        """A class and those it inherits from, itself first."""
        found = [key]
        for base in self.classes[key].bases:
            if base in self.classes:
                found += self._ancestors(base)
        return found

    def _methods(self, key: Key) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for each in reversed(self._ancestors(key)):
            found |= self.classes[each].methods
        return found

    def _implements(self, key: Key, protocol: Key) -> bool:
        if ("", "Protocol") not in self.classes[protocol].bases:
            return False
        return self._methods(protocol).items() <= self._methods(key).items()

    def _families(self, name: str) -> list[set[Key]]:
        """The classes that define a method, those of one protocol or base class together."""
        families: list[set[Key]] = []
        owners = [key for key, each in self.classes.items() if name in each.methods]
        for owner in owners:
            kin = {owner}
            kin |= {each for each in self._ancestors(owner) if each in owners}
            kin |= {each for each in owners if self._implements(owner, each)}
            for family in [family for family in families if family & kin]:
                families.remove(family)
                kin |= family
            families.append(kin)
        return families


@cache
def program() -> Program:
    found: list[Class] = []
    for path in sources():
        parts = path.relative_to(ROOT).with_suffix("").parts
        module = ".".join(parts if parts[0] == "p2pcache" else ("p2pcache", *parts))
        found += classes_in(module.removesuffix(".__init__"), path.read_text())
    return Program(found)


def test_few_unrelated_classes_share_a_method_name() -> None:
    crowded = {
        name: sorted(".".join(min(family)) for family in families)
        for name, families in program().families.items()
        if len(families) > MOST and name not in COMMON
    }
    assert not crowded, "say in the name what happens, in a word of docs/design/words.md"


def test_a_protocol_and_what_implements_it_are_one_family() -> None:
    (family,) = (f for f in program().families["on_next_batch"] if len(f) > 1)
    assert {name for _, name in family} == {"Sink", "HostSink", "DeviceSink", "IntoSink"}
    nominal = [f for f in program().families["readinto"] if len(f) > 1]
    assert {"Body", "S3Body"} <= {name for family in nominal for _, name in family}


TEXT = """
from typing import Protocol
class Port(Protocol):
    def put(self, x): ...
    def end(self): ...
class Right:
    def put(self, _x): ...
    def end(self): ...
    def more(self): ...
class Child(Right):
    def put(self, x): ...
class Half:
    def put(self, x): ...
class Other:
    def put(self, y): ...
    def end(self): ...
    @property
    def size(self): ...
    def _own(self): ...
"""


def test_families_are_told_apart() -> None:
    families = Program(list(classes_in("p2pcache.m", TEXT))).families
    names = sorted(sorted(name for _, name in family) for family in families["put"])
    assert names == [["Child", "Port", "Right"], ["Half"], ["Other"]]
    assert set(families) == {"put", "end", "more"}
