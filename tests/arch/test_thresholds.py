"""What can be tuned in `core` stands in settings modules, each number with its reason."""

import ast
import re
from pathlib import Path

CORE = Path(__file__).resolve().parents[2] / "p2pcache" / "core"

# Numbers that nobody tunes: they are a part of what their module defines.
DEFINED = {
    "format": "limits of a format, as docs/formats.md says",
    "protocol": "limits of the wire, as docs/protocol.md says",
    "scheduler/recording.py": "a format, too",
    "host/kubernetes_labels.py": "what a label may look like",
    "membership/crowded_address.py": "how long an IPv6 subnet is",
    "racks/bridge_slots.py": "a key beside run numbers",
    "swarm/commands.py": "the set of all runs",
    "racks/bridges.py": "the set of all runs",
    "run_log.py": "nobody's id",
    "backoff.py": "arithmetic",
    "bitset.py": "arithmetic",
    "rendezvous.py": "arithmetic",
    "units.py": "arithmetic",
}


def numbers(path: Path) -> list[tuple[str, int]]:
    """Constants of a module whose values are numbers, each with its line."""
    found = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                one.id
                for target in targets
                for one in ast.walk(target)
                if isinstance(one, ast.Name)
            ]
            if all(re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) for name in names) and is_number(
                node.value
            ):
                found.append((", ".join(names), node.lineno))
    return found


def is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(number):
            return isinstance(number, int | float) and not isinstance(number, bool)
        case ast.UnaryOp(operand=inner):
            return is_number(inner)
        case ast.BinOp(left=left, right=right):
            return is_number(left) or is_number(right)
        case ast.Tuple(elts=parts):
            return all(map(is_number, parts))
    return False


def test_thresholds_stand_in_settings_modules() -> None:
    strays = {}
    for path in sorted(CORE.rglob("*.py")):
        name = path.relative_to(CORE).as_posix()
        room = name.split("/")[0]
        defines = path.name == "settings.py" or name in DEFINED or room in DEFINED
        if not defines and (found := numbers(path)):
            strays[name] = found
    assert not strays, "give them a line in the settings of their room"


def test_each_threshold_has_its_reason() -> None:
    """In its line, or in the lines before it."""
    bare = []
    for path in sorted(CORE.rglob("settings.py")):
        lines = path.read_text().splitlines()
        for name, line in numbers(path):
            before = lines[line - 2].strip()
            after = " ".join(lines[line - 1 : line + 2])  # a formatter may have broken the line
            if "#" not in after.split(" = ", 1)[1] and not (
                before.startswith("#") and not before.startswith("# --")
            ):
                bare.append(f"{path.relative_to(CORE)}:{line} {name}")
    assert not bare


def test_a_stray_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "LIMIT_S = 2 * 3.5\n_A, B = 1, 2\nNAMES = {}\nTEXT = 'x'\nx = 3\nMOST: int = 1 << 4\n"
    )
    assert [name for name, _ in numbers(module)] == ["LIMIT_S", "_A, B", "MOST"]
