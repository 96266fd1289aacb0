"""What pyproject.toml can't say: wheels and sdists hold the commit that they were built from.

The commit is the one of `P2PCACHE_COMMIT` (a build without .git, as the image's), of the note in an sdist, or git's.
"""

import os
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # a build doesn't begin in a place from where Python would find it

from p2pcache.io.release import NOTE, UNKNOWN, commit_of  # noqa: E402


def write_note(built: Path) -> None:
    """Write the commit into a built tree. Without one there is no note, not even an older build's."""
    note = built / NOTE
    note.unlink(missing_ok=True)  # never through a hard link into the source
    commit = os.environ.get("P2PCACHE_COMMIT") or commit_of(ROOT)
    if commit != UNKNOWN:
        note.write_text(f"{commit}\n")


class BuildPy(build_py):
    """A wheel's tree."""

    def run(self) -> None:
        """Build, then note. An editable install runs from the checkout, whose commit changes."""
        super().run()
        if not self.editable_mode:
            write_note(Path(self.build_lib))


class Sdist(sdist):
    """An sdist's tree."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Fill the tree, then note."""
        super().make_release_tree(base_dir, files)
        write_note(Path(base_dir))


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
