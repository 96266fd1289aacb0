"""`p2pcache compile-cache` without a daemon: key, save, restore, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.kit.cluster import clean_environ
from p2pcache.core.format import compile_cache_key as cc

FIELDS = [f"--field={name}=1" for name in cc.FIELDS if name not in ("engine", "model")]
pytestmark = pytest.mark.functional


def call(
    home: Path, *args: str, code: int = 0, trusted: str = "team", program: str = "main"
) -> subprocess.CompletedProcess[str]:
    environ = {
        **clean_environ(home), "P2PCACHE_ORIGIN": f"file://{home}/origin",
        "P2PCACHE_COMPILE_CACHE_NAMESPACES": trusted,
    }  # fmt: skip
    command = [sys.executable, "-m", f"p2pcache.cli.{program}", *args]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for name in ("origin", "model", "cache"):
        (folder / name).mkdir()
    (folder / "model" / "weights.bin").write_bytes(os.urandom(1000))
    (folder / "cache" / "a.so").write_bytes(os.urandom(1000))
    call(folder, "push", str(folder / "model"), "team/m:v1")
    return folder


@pytest.mark.slow
def test_a_life_of_a_cache(home: Path, tmp_path: Path) -> None:
    how = ["team/m:v1", "--engine", "vllm", *FIELDS]
    made = json.loads(call(home, "compile-cache", "key", *how).stdout)
    assert made["ref"].startswith("team/m-cc:")
    assert (made["key"]["engine"], made["key"]["device"]) == ("vllm", "1")
    target = tmp_path / "c"
    where = ["--dir", str(target)]
    missing = call(home, "compile-cache", "restore", *how, *where, code=3)
    assert "error" in missing.stderr
    optional = call(home, "compile-cache", "restore", *how, *where, "--optional")
    assert "the engine will compile" in optional.stderr
    saved = call(home, "compile-cache", "save", *how, "--dir", str(home / "cache"))
    assert f"saved {made['ref']}: 1 file, " in saved.stderr
    again = call(home, "compile-cache", "save", *how, "--dir", str(home / "cache"), "--json")
    assert json.loads(again.stdout)["saved"] is False
    restored = json.loads(call(home, "compile-cache", "restore", *how, *where, "--json").stdout)
    assert restored["restored"] is True
    assert (target / "a.so").read_bytes() == (home / "cache" / "a.so").read_bytes()
    assert "already" in call(home, "compile-cache", "restore", *how, *where).stderr


@pytest.mark.slow
def test_refused_unless_an_operator_named_the_namespace(home: Path, tmp_path: Path) -> None:
    how = ["team/m:v1", "--engine", "vllm", *FIELDS, "--dir", str(tmp_path / "c")]
    for extra in ([], ["--optional"]):  # that is no reason to start without saying anything
        refused = call(home, "compile-cache", "restore", *how, *extra, code=4, trusted="")
        assert "P2PCACHE_COMPILE_CACHE_NAMESPACES" in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_a_pair_needs_a_name_and_an_equals_sign(home: Path, tmp_path: Path) -> None:
    for bad in ("--field=device", "--extra==2", "--field=gpu=x"):
        call(
            home, "compile-cache", "key", "team/m:v1", "--engine=torch", bad, "--cache-dir",
            str(tmp_path), code=2,
        )  # fmt: skip


@pytest.mark.slow
def test_before_an_engine_starts(home: Path, tmp_path: Path) -> None:
    """As an init container: the model's cache if there is one, and no failure if there is none."""
    target = str(tmp_path / "c")
    none = call(
        home, "--compile-cache", "torch", "p2pcache://team/m:v1", target, program="init"
    )  # fmt: skip
    assert "the engine will compile" in none.stderr
    saved = ["team/m:v1", "--engine", "torch", "--dir", str(home / "cache"), "--extra", "tp=2"]
    call(home, "compile-cache", "save", *saved)
    call(home, "--compile-cache", "torch", "--extra", "tp=2", "p2pcache://team/m:v1", target,
         program="init")  # fmt: skip
    assert (tmp_path / "c" / "a.so").exists()
    call(home, "--compile-cache", "torch", "p2pcache://team/m:v1", code=2, program="init")
    call(home, "--compile-cache", "torch", "s3://team/m", target, code=2, program="init")
