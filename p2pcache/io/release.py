"""Version and commit of this program, versions of its main packages, and the formats that it speaks.

Standard library alone until `this_release` is called: the build asks for the commit, too (setup.py).
"""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import p2pcache

NOTE = "p2pcache/_commit.txt"  # written into wheels and sdists by setup.py; never in a checkout
UNKNOWN = "unknown"
_GIT_S = 5.0  # a checkout on a slow disk; without an answer the commit is unknown


class Release(NamedTuple):
    """This program. `formats`: by name, the version marks that its data carries."""

    version: str
    commit: str
    python: str
    uvloop: str
    blake3: str
    formats: dict[str, Any]


def this_release() -> Release:
    """The running program. Reads files and asks git; takes some milliseconds."""
    from p2pcache.core.format.manifest import FORMAT_SHA256
    from p2pcache.core.protocol.handshake import VERSIONS
    from p2pcache.io.disk.agent_db import SCHEMA_VERSION
    from p2pcache.io.origins.repo import ROOT

    return Release(
        p2pcache.__version__,
        commit_of(Path(p2pcache.__file__).parents[1]),
        platform.python_version(),
        package_version("uvloop"),
        package_version("blake3"),
        {
            "wire": list(VERSIONS),
            "cache": SCHEMA_VERSION,
            "origin": ROOT,
            "manifest": FORMAT_SHA256,
        },
    )


def commit_of(root: Path) -> str:
    """The commit of the program whose package lies in `root`, "-dirty" behind it if files were changed.

    `UNKNOWN` where no build wrote it down and `root` is no checkout that git can read.
    """
    note = root / NOTE
    if note.is_file():
        return note.read_text().strip() or UNKNOWN
    if not (root / ".git").exists():  # git would search further up, and find another repository
        return UNKNOWN
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [
        "git",
        "--no-optional-locks",
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(
            command, cwd=root, env=plain, check=True, capture_output=True, text=True, timeout=_GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN


def package_version(name: str) -> str:
    """The version of an installed package, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
