"""The public calls on directories: what they give, what they refuse, what they leave behind."""

import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import p2pcache
from p2pcache.errors import InvalidHeader, NotFound, P2PCacheError, UsageError
from p2pcache.loader.stream import Tuning
from tests.loader.loader_kit import (
    Spec,
    reader_threads,
    soon,
    torch_bytes,
    write,
    write_index,
    write_raw,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path / "model.safetensors", [Spec(f"layers.{i}.w", "F32", (30, 40)) for i in range(6)]
    )
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, p2pcache; assert 'p2pcache.loader' not in sys.modules; "
        "p2pcache.load; assert not {'torch', 'numpy', 'aiohttp', 'asyncio'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_front_door() -> None:
    assert {"load", "load_into", "iter_tensors", "safe_open"} <= set(dir(p2pcache))
    with pytest.raises(AttributeError):
        p2pcache.nonsense  # noqa: B018  # type: ignore[attr-defined]


def test_raw_needs_neither_torch_nor_numpy(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import p2pcache\n"
        f"assert len(p2pcache.load({str(folder)!r}, framework='raw')) == 6\n"
        "for framework in ('pt', 'np'):\n"
        "    try: p2pcache.load('/nowhere', framework=framework)\n"
        "    except Exception as error: assert 'not installed' in str(error), error\n"
        "    else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_is_a_model_too(folder: Path) -> None:
    assert len(p2pcache.load(folder / "model.safetensors")) == 6


def test_layers_come_in_order(folder: Path) -> None:
    names = [name for name, _ in p2pcache.iter_tensors(folder, tuning=Tuning(threads=1))]
    assert names == [f"layers.{i}.w" for i in range(6)]


def test_hundreds_of_shards(tmp_path: Path) -> None:
    weight_map = {}
    for i in range(300):
        write(
            tmp_path / f"model-{i:05}-of-00300.safetensors", [Spec(f"t{i}", "BF16", (5, 3))], seed=i
        )
        weight_map[f"t{i}"] = f"model-{i:05}-of-00300.safetensors"
    write_index(tmp_path, weight_map)
    with soon():
        found = p2pcache.load(tmp_path)
    assert sorted(found) == sorted(weight_map)


def test_files_that_hold_no_tensors_are_listed(folder: Path) -> None:
    (folder / "model.gguf").write_bytes(b"GGUF")
    with p2pcache.safe_open(folder) as model:
        assert model.files()["model.gguf"] == 4
        assert model.metadata()["format"] == "pt"
        assert model.get_slice("layers.0.w").get_shape() == [30, 40]
        assert model.get_slice("layers.0.w").get_dtype() == "F32"
    (folder / "model.safetensors").unlink()
    with pytest.raises(NotFound, match=r"no .safetensors"):
        p2pcache.load(folder)


@pytest.mark.parametrize(("dim", "most"), [(0, 1.0), (1, 4.0)])
def test_a_rank_reads_little_more_than_its_share(tmp_path: Path, dim: int, most: float) -> None:
    write(
        tmp_path / "m.safetensors",
        [Spec(f"{i}.q_proj.weight", "BF16", (512, 1024)) for i in range(4)],
    )
    axis = p2pcache.ParallelAxis("tensor", 2, 4, dim, "*.q_proj.*")
    with p2pcache.iter_tensors(tmp_path, parallel=[axis]) as stream:
        assert sum(tensor.nbytes for _, tensor in stream) == 1 << 20
    assert stream.report.bytes == 1 << 20
    assert stream.report.bytes_read <= most * (1 << 20)


@pytest.mark.parametrize(
    "arguments",
    [
        {"framework": "tf"},
        {"framework": "np", "device": "cuda"},
        {"device": "cuda:99"},
        {"device": "toaster"},
        {"memory_limit": 100},
        {"memory_limit": "much"},
        {"fetch": "some"},
        {"stage": (2, 2)},
    ],
)
def test_bad_arguments(folder: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        p2pcache.iter_tensors(folder, **arguments)  # type: ignore[arg-type]
    assert reader_threads() == []


def test_missing_paths_tensors_and_wrong_refs(folder: Path) -> None:
    with pytest.raises(NotFound):
        p2pcache.load(folder / "absent")
    with pytest.raises(NotFound):
        p2pcache.load("./absent")
    with pytest.raises(UsageError, match="not a model ref"):
        p2pcache.load("What Is This")
    with p2pcache.safe_open(folder) as model, pytest.raises(NotFound, match="no tensor 'x'"):
        model.get_tensor("x")


def test_a_hostile_file_among_good_ones(folder: Path) -> None:
    write_raw(
        folder / "evil.safetensors", '{"x":{"dtype":"U8","shape":[99],"data_offsets":[0,99]}}'
    )
    for call in (p2pcache.load, p2pcache.safe_open, p2pcache.iter_tensors):
        with pytest.raises(InvalidHeader, match=r"evil.safetensors"):
            call(folder)


def test_many_loads_at_once(folder: Path) -> None:
    expected = {name: torch_bytes(t) for name, t in p2pcache.load(folder).items()}
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(5):
                found = p2pcache.load(folder)
                if {name: torch_bytes(t) for name, t in found.items()} != expected:
                    wrong.append("bytes")
        except P2PCacheError as error:
            wrong.append(error)

    crowd = [threading.Thread(target=work) for _ in range(8)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("name", "own"),
    [("p2pcache", False), ("p2pcache.errors", True), ("p2pcache.loader.compile_cache", True)],
)
def test_a_public_module_says_what_is_public(name: str, own: bool) -> None:  # fmt: skip
    module = importlib.import_module(name)
    public = set(module.__all__)
    assert len(public) == len(module.__all__)
    for each in public:
        assert getattr(module, each).__doc__, each
    assert public <= set(dir(module))
    if own:  # what another module of ours would have to import is public, or marked as ours
        made = {
            n
            for n, v in vars(module).items()
            if getattr(v, "__module__", "") == name and n[0].isupper()
        }
        assert made == {n for n in public if n[0].isupper()}
    else:
        assert public == {*vars(module)["_LAZY"], *vars(module)["_MODULES"], "__version__"}
