"""What Python doesn't wrap."""

import subprocess
import sys

SCRIPT = """
import re, threading
from pathlib import Path
from p2pcache.io.disk.syscalls import give_back_blocks_of

def kept():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def use():
    for _ in range(3):
        blocks = [b"x" * (8 << 20), b"y" * (8 << 20)]
        del blocks
        together.wait()

def run():
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

together = threading.Barrier(4)
give_back_blocks_of(1 << 20)
before = kept()
run()
print(kept() - before)
"""


def test_large_blocks_go_back_from_every_thread() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert int(ended.stdout) < 8 << 20
