"""The words of core's names are defined in docs/design/words.md.

A defined word stands in the first column of a table that begins with `word`, or in the paragraph on plain words.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "p2pcache" / "core"
PAGE = (ROOT / "docs" / "design" / "words.md").read_text()
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def singular(word: str) -> str:
    """One form for a word and its plural, in lower case."""
    word = word.lower()
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def words_of(name: str) -> set[str]:
    """The words that a CamelCase or snake_case name is built of."""
    return {singular(part) for part in _PARTS.findall(name)}


def tables(page: str) -> Iterator[list[list[str]]]:
    """The rows of each Markdown table, the header first."""
    rows: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows:
            yield rows[:1] + rows[2:]
            rows = []


def first_column(page: str, header: str) -> list[str]:
    """The first cells of all tables whose first header is this."""
    return [row[0] for rows in tables(page) if rows[0][0] == header for row in rows[1:]]


def section(page: str, title: str) -> str:
    """The text below a heading of level two."""
    return page.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def defined(page: str) -> set[str]:
    """Every word that the page defines."""
    plain = re.findall(r"`(\w+)`", section(page, "Plain words in names"))
    cells = [*first_column(page, "word"), *plain]
    return {singular(word) for cell in cells for word in re.findall(r"[A-Za-z0-9]+", cell)}


def modules() -> list[Path]:
    return sorted(path for path in CORE.rglob("*.py") if path.name != "__init__.py")


def public_classes(path: Path) -> list[str]:
    body = ast.parse(path.read_text()).body
    names = [node.name for node in body if isinstance(node, ast.ClassDef)]
    return [name for name in names if not name.startswith("_")]


def test_a_name_is_split_into_words() -> None:
    assert words_of("PeersHave") == {"peer", "have"}
    assert words_of("BDPBook") == {"bdp", "book"}
    assert words_of("slow_readers") == {"slow", "reader"}
    assert words_of("Boundaries") == {"boundary"}


def test_the_page_defines_only_what_its_tables_say() -> None:
    known = defined(PAGE)
    assert {"lease", "bridge", "rarity", "dialback"} <= known
    assert "seat" not in known  # an old word is no definition


def test_module_names_in_core_are_defined_words() -> None:
    known = defined(PAGE)
    strange = {}
    for path in modules():
        name = path.relative_to(CORE).with_suffix("").as_posix()
        if missing := words_of(name) - known:
            strange[name] = sorted(missing)
    assert not strange, f"define these words in docs/design/words.md: {strange}"


def test_class_names_in_core_are_defined_words() -> None:
    known = defined(PAGE)
    strange = {}
    for path in modules():
        for name in public_classes(path):
            if missing := words_of(name) - known:
                strange[f"{path.relative_to(CORE)}: {name}"] = sorted(missing)
    assert not strange, f"define these words in docs/design/words.md: {strange}"


def test_every_module_of_core_is_listed() -> None:
    listed = [cell.strip("`") for cell in first_column(PAGE, "module")]
    present = [path.relative_to(CORE).with_suffix("").as_posix() for path in modules()]
    assert sorted(listed) == sorted(present)


def test_no_word_is_defined_twice() -> None:
    words = [
        part.strip().lower() for cell in first_column(PAGE, "word") for part in cell.split(",")
    ]
    assert sorted(words) == sorted(set(words))
