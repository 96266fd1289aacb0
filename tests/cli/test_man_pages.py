"""The manual pages, by click-man, checked by groff."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from p2pcache.cli.main import COMMANDS

SCRIPT = Path(__file__).parents[2] / ".ci" / "man_pages.py"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("click_man", reason="click-man is not installed (make setup)")
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True, timeout=60)
    return {path.stem: path for path in folder.iterdir()}


def test_every_command_has_a_page(pages: dict[str, Path]) -> None:
    words = {word for part in COMMANDS.values() for word in part}
    assert {"p2pcache"} | {f"p2pcache-{word}" for word in words} <= pages.keys()


def test_a_page_has_the_options_and_no_fault(pages: dict[str, Path]) -> None:
    if (groff := shutil.which("groff")) is None:
        pytest.skip("groff is not here")
    page = pages["p2pcache-pull"]
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-ww", str(page)], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "--include" in done.stdout
    assert "p2pcache pull team/llama:v3" in done.stdout
