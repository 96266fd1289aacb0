"""mkdocs hook: what the site needs beyond docs/.

The pages are written for a checkout, where a link may leave docs/. In the site a link to one of
`PAGES` leads to a copy of that page; a link to any other file of the repository becomes the file's
path, as code. A link to nothing is a warning, which ends a strict build.
"""

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

log = logging.getLogger("mkdocs.hooks.site")

ROOT = Path(__file__).resolve().parents[1]
PAGES = {  # in the repository: in the site
    "README.md": "project/first-steps.md",
    "loadtest/README.md": "project/measurements.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
_IN_REPOSITORY = {site: source for source, site in PAGES.items()}
_LINK = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^()\s]+)\)")
_CODE = re.compile(r"`[^`]+`")
_FENCE = re.compile(r"^(```|~~~)")
_ITEM = re.compile(r"(?:[-*] |\d+\. )")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside of docs/."""
    for source, site in PAGES.items():
        files.append(File.generated(config, site, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links that leave docs/, and lists that only other Markdown readers see, outside of code blocks."""
    source = _IN_REPOSITORY.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    lines: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        if _FENCE.match(line.lstrip()):
            fenced = not fenced
        if fenced or line.startswith("    "):
            lines.append(line)
            continue
        if _begins_list(line, lines):
            lines.append("")
        turned = _LINK.sub(lambda link: _turn(link, source, page.file.src_uri), line)
        # In a table's code Python-Markdown shows the backslash before a bar.
        in_table = turned.startswith("|")
        lines.append(_CODE.sub(_without_escapes, turned) if in_table else turned)
    return "\n".join(lines)


def _without_escapes(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _begins_list(line: str, before: list[str]) -> bool:
    """Whether a list begins right below a paragraph, where Python-Markdown would read on in the paragraph."""
    last = before[-1] if before else ""
    return (
        bool(_ITEM.match(line))
        and bool(last)
        and not last.startswith(" ")
        and not _ITEM.match(last)
    )


def _turn(link: re.Match[str], source: str, page: str) -> str:
    text, target = link.groups()
    path, _, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if wanted in PAGES:
        inside = PAGES[wanted]
    elif wanted.startswith("docs/"):
        inside = wanted.removeprefix("docs/")
    else:
        if not (ROOT / wanted).exists():
            log.warning("%s links to %s, which isn't in the repository", source, wanted)
        return text if f"`{wanted}`" == text else f"{text} (`{wanted}`)"
    if (ROOT / "docs" / inside).is_dir():
        inside = _index_of(inside)
    way = posixpath.relpath(inside, posixpath.dirname(page) or ".")
    return f"[{text}]({way}{'#' + anchor if anchor else ''})"


def _index_of(folder: str) -> str:
    """A folder's own page, if it has one."""
    for name in ("README.md", "index.md"):
        if (ROOT / "docs" / folder / name).is_file():
            return f"{folder}/{name}"
    return folder
