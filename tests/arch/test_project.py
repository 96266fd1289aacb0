"""What an open project has: a license in what is shipped, the commit in what is built, an index, a site."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "docs/lab"
# Tags that make a browser fetch what they name, and the attribute that names it. A link to follow isn't one.
FETCHED = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "object": "data",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def checkout(where: Path) -> Path:
    """A copy of the files that git has or would have, without .git."""
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                             capture_output=True, text=True)  # fmt: skip
    for name in tracked.stdout.split():
        source, target = ROOT / name, where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(source.readlink())
        elif source.exists():
            target.write_bytes(source.read_bytes())
    return where


def build(source: Path, kind: str, out: Path) -> Path:
    """A wheel or an sdist, by the backend that pyproject.toml names, in a process of its own."""
    out.mkdir()
    call = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", call, str(out)], cwd=source, check=True, capture_output=True
    )
    (made,) = out.iterdir()
    return made


@pytest.mark.slow
def test_license_and_commit_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the sdist, and from there, where no git is, into the wheel."""
    source = checkout(tmp_path / "source")
    monkeypatch.setenv("P2PCACHE_COMMIT", COMMIT)
    sdist = build(source, "sdist", tmp_path / "sdist")
    monkeypatch.delenv("P2PCACHE_COMMIT")
    assert not (source / "p2pcache/_commit.txt").exists()
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    for name in ("LICENSE", "CHANGELOG.md", "SECURITY.md", "mkdocs.yml", ".ci/docs_site.py"):
        assert (unpacked / name).read_bytes() == (ROOT / name).read_bytes()
    wheel = zipfile.ZipFile(build(unpacked, "wheel", tmp_path / "wheel"))
    assert wheel.read("p2pcache/_commit.txt").decode() == f"{COMMIT}\n"
    (info,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    said = HeaderParser().parsestr(wheel.read(f"{info}/METADATA").decode())
    assert said["License-Expression"] == "Apache-2.0"


@pytest.mark.slow
def test_what_no_git_knows_is_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("P2PCACHE_COMMIT", raising=False)
    source = checkout(tmp_path / "source")
    older = source / "build/lib/p2pcache/_commit.txt"
    older.parent.mkdir(parents=True)
    older.write_text("of an older build\n")
    wheel = zipfile.ZipFile(build(source, "wheel", tmp_path / "wheel"))
    assert "p2pcache/_commit.txt" not in wheel.namelist()


def test_the_license_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_changelog_has_this_release() -> None:
    import p2pcache

    heads = re.findall(r"^## \[([^]]+)]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert p2pcache.__version__ in heads


def test_each_record_of_the_lab_is_in_its_index() -> None:
    """One row for each record, by number, and no row whose record has a name of its own elsewhere."""
    index = (LAB / "README.md").read_text()
    records = {path.name for path in LAB.glob("*.md")} - {"README.md"}
    assert len(records) > 40
    assert {
        name for name in records if f"]({name})" not in index and f"`{name}`" not in index
    } == set()
    rows = [line for line in index.splitlines() if re.match(r"\| (\[\d{4}]\(|\d{4},)", line)]
    assert all(re.fullmatch(r"\|[^|]+\|[^|]+\|[^|]*[a-z][^|]*\|", row) for row in rows)
    numbers = [int(row.lstrip("| [")[:4]) for row in rows]
    assert numbers == list(range(1, len(rows) + 1))


class Fetches(HTMLParser):
    """What a browser would fetch for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "link" and said.get("rel") in {"canonical", "next", "prev"}:
            return
        if said.get(FETCHED.get(tag, "")):
            self.found.append(str(said[FETCHED[tag]]))


def fetched(page: Path) -> list[str]:
    parser = Fetches()
    parser.feed(page.read_text())
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, from a copy."""
    pytest.importorskip("material", reason="the docs extra isn't installed")
    source = checkout(tmp_path_factory.mktemp("docs"))
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=source,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return source / "build/site"


@pytest.mark.slow
def test_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    away = {(str(p.relative_to(site)), name) for p in pages for name in fetched(p) if "//" in name}
    assert away == set()
    styles = [
        p for p in site.rglob("*.css") if re.search(r"url\(\s*['\"]?(https?:)?//", p.read_text())
    ]
    assert styles == []


@pytest.mark.slow
def test_nothing_in_the_pages_makes_the_theme_fetch(site: Path) -> None:
    """Its script loads a renderer from elsewhere where a page has one of these, and asks a forge about a repository."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'class="mermaid"' not in text
        assert "data-md-source" not in text
        assert 'data-md-component="source"' not in text


@pytest.mark.slow
def test_links_that_leave_the_docs_lead_to_something(site: Path) -> None:
    front = (site / "index.html").read_text()
    assert 'href="project/measurements/"' in front
    kubernetes = (site / "kubernetes/index.html").read_text()
    assert "<code>deploy/helm/p2pcache/values.yaml</code>" in kubernetes
    assert "../deploy" not in kubernetes


@pytest.mark.slow
def test_a_link_to_nothing_ends_the_build(site: Path) -> None:
    source = site.parents[1]
    page = source / "docs/origins.md"
    wrong = ["../nowhere1.py", "nowhere2.md", "cli.md#nowhere3", "../README.md#nowhere4"]
    page.write_text(page.read_text() + "".join(f"\n[x]({target})\n" for target in wrong))
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(source / "other")],
        cwd=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    warnings = "\n".join(line for line in done.stderr.splitlines() if line.startswith("WARNING"))
    assert set(re.findall(r"nowhere\d", warnings)) == {
        "nowhere1",
        "nowhere2",
        "nowhere3",
        "nowhere4",
    }
