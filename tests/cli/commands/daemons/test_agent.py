import subprocess
import sys
from pathlib import Path


def test_an_agent_says_in_one_line_why_it_does_not_start(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "p2pcache.cli.main", "agent", "--listen", "0.0.0.0:0", "--cache-dir", tmp_path],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert process.returncode in (2, 4)
    assert process.stderr.startswith("p2pcache: error: ")
    assert process.stderr.count("\n") == 1
