"""The shape of the house: rooms, wheel, sizes, words."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["p2pcache", "agent", "tracker", "cli"]
MAX_LINES = 400  # a file that passes it is asking to be two things
MAX_MODULES = 12  # of one folder, beside its doors; a reader takes in no more at a glance
DOORS = ("__init__.py", "__main__.py")


def sources() -> list[Path]:
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return sorted(p for p in found if not any(up.is_symlink() for up in p.parents if up != ROOT))


def test_the_rooms_are_found() -> None:
    assert len(sources()) > 30
    for link in ("agent", "tracker", "cli"):
        assert (ROOT / "p2pcache" / link).resolve() == ROOT / link


def test_no_file_outgrows_its_purpose() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for p in sources()
        if (n := len(p.read_text().splitlines())) > MAX_LINES
    }
    assert not long


def test_no_folder_is_crowded() -> None:
    modules = Counter(path.parent for path in sources() if path.name not in DOORS)
    crowded = {
        str(folder.relative_to(ROOT)): count
        for folder, count in modules.items() if count > MAX_MODULES
    }  # fmt: skip
    assert not crowded


def test_every_module_says_what_it_is() -> None:
    mute = [p for p in sources() if not p.read_text().lstrip().startswith('"""')]
    assert not mute


def test_no_daemon_shares_one_pool_for_all_that_blocks() -> None:
    """Or look-ups of names that nobody answers hold up the disk work of a pull."""
    shared = re.compile(r"\bto_thread\(|\brun_in_executor\(")
    users = [p for p in sources() if "cli" not in p.parts and shared.search(p.read_text())]
    assert not users, "io.pools has threads by purpose"


def test_package_list_is_complete() -> None:
    """A forgotten subpackage works in an editable install and is missing from the wheel."""
    listed = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    )
    present = set()
    for path in sources():
        parts = path.relative_to(ROOT).parts[:-1]
        name = ".".join(parts if parts[0] == "p2pcache" else ("p2pcache", *parts))
        present.add(name)
    assert present == listed


@pytest.mark.slow
def test_wheel_holds_the_tree(tmp_path: Path) -> None:
    copy = tmp_path / "src"
    tracked = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in tracked.stdout.split():
        source, target = ROOT / name, copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            target.write_bytes(source.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."],
        cwd=copy, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    inside = {n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".py")}
    expected = set()
    for path in sources():
        relative = path.relative_to(ROOT)
        expected.add(
            str(relative if relative.parts[0] == "p2pcache" else Path("p2pcache") / relative)
        )
    assert inside == expected


def test_readme_commands_exist() -> None:
    """The make targets that the README names are in the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named <= targets
