"""Some of a model's files, selected by glob patterns as in `hf download --include`."""

import re
from collections.abc import Sequence
from fnmatch import translate

from blake3 import blake3

from p2pcache.core import bitset
from p2pcache.core.format.layout import Layout
from p2pcache.errors import NotFound, UsageError
from p2pcache.ids import RunSet

MAX_PATTERNS = 64  # of each kind, in one pull
MAX_PATTERN_BYTES = 1024  # as a path
# Characters of all patterns times characters of all paths. A pattern may be tried at each character of a path; so
# many tries take seconds.
MAX_WORK = 20_000_000_000
_NAME_HEX = 32  # 128 bits: two selections of one model never meet


def pick_paths(paths: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """The selected ones of some paths.

    `*` matches across folders, case counts, and a pattern that ends in "/" means all files below it. It may take
    seconds.

    Args:
        paths: of files.
        include: patterns of which a path matches at least one; empty: all paths.
        exclude: patterns of which a path matches none.

    Raises:
        UsageError: too many patterns, or too long ones, also for the number of paths.
        NotFound: no path is selected.
    """
    for pattern in (*include, *exclude):
        if not pattern or len(pattern.encode()) > MAX_PATTERN_BYTES:
            raise UsageError(f"a pattern has 1 to {MAX_PATTERN_BYTES} bytes: {pattern[:40]!r}")
    if len(include) > MAX_PATTERNS or len(exclude) > MAX_PATTERNS:
        raise UsageError(f"at most {MAX_PATTERNS} patterns of a kind; give fewer")
    if sum(map(len, (*include, *exclude))) * sum(map(len, paths)) > MAX_WORK:
        raise UsageError(
            f"these patterns take too long on a model of {len(paths):,} files; give fewer or shorter ones"
        )
    wanted, unwanted = _compiled(include or ["*"]), _compiled(exclude)
    kept = [p for p in paths if _any(p, wanted) and not _any(p, unwanted)]
    if not kept:
        raise NotFound("no file of the model fits these patterns; `p2pcache show` lists its files")
    return kept


def name_of(paths: Sequence[str]) -> str:
    """The name of a selection (hex): the same files have the same name, whatever the patterns were."""
    return blake3("\n".join(sorted(paths)).encode()).hexdigest()[:_NAME_HEX]


def is_name(text: str) -> bool:
    """Whether this is the name of a selection."""
    return len(text) == _NAME_HEX and all(c in "0123456789abcdef" for c in text)


def runs_of(layout: Layout, paths: Sequence[str]) -> RunSet:
    """The runs in which these files' bytes lie."""
    return bitset.of({
        layout.run_of(chunk)
        for number in {layout.blob_of_file[path] for path in paths}
        for chunk in layout.blobs[number].chunks
    })  # fmt: skip


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    # Not by `fnmatch`, which keeps 32,768 compiled patterns: those of strangers would take gigabytes.
    return [re.compile(translate(p + "*" if p.endswith("/") else p)) for p in patterns]


def _any(path: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    return any(pattern.match(path) for pattern in patterns)
