"""Generated models, loaded in every way, bit for bit as the safetensors library gives them.

All tensors are held to the end before the first is compared: memory that is used again too early
shows here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import p2pcache
from p2pcache.loader.format.dtypes import BITS, RawTensor, numpy_dtype
from tests.loader.loader_kit import Spec, torch_bytes, write, write_index

PACKED = ("F4", "F6_E2M3", "F6_E3M2")
CORPUS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def specs(draw: st.DrawFn, dtypes: list[str]) -> list[list[Spec]]:
    """Shards of tensors."""
    shards = []
    shard_count: int = draw(st.integers(1, 4))
    for shard in range(shard_count):
        tensors = []
        tensor_count: int = draw(st.integers(0, 12))
        for number in range(tensor_count):
            dtype: str = draw(st.sampled_from(dtypes))
            shape: list[int] = draw(st.lists(st.integers(0, 7), max_size=4))
            if draw(st.integers(0, 9)) == 0:
                shape = [draw(st.integers(100, 400)), 700]  # across batches and memory classes
            if BITS[dtype] < 8:
                shape = [*shape, 8]
            tensors.append(Spec(f"layers.{number}.s{shard}", dtype, tuple(shape)))
        shards.append(tensors)
    return shards


@contextmanager
def written(shards: list[list[Spec]], pad: int) -> Iterator[tuple[Path, dict[str, bytes]]]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        body: dict[str, bytes] = {}
        weight_map: dict[str, str] = {}
        for i, tensors in enumerate(shards):
            path = folder / f"model-{i}.safetensors"
            body |= write(path, tensors, pad=pad + i, seed=i)
            weight_map |= {spec.name: path.name for spec in tensors}
        if weight_map:
            write_index(folder, weight_map)
        yield folder, body


def oracle(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        for path in sorted(folder.glob("*.safetensors")):
            file = stack.enter_context(safetensors.safe_open(path, "pt"))
            for name in file.keys():  # noqa: SIM118  # not a dict
                found[name] = file.get_tensor(name).clone()
    return found


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        other = expected[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert torch_bytes(tensor) == torch_bytes(other)


TORCH = sorted(d for d in BITS if not d.startswith("F6"))


@CORPUS
@given(specs(TORCH), st.integers(0, 9), st.sampled_from(["1MiB", "3MB", "1GiB"]))
def test_torch_is_bit_equal(shards: list[list[Spec]], pad: int, limit: str) -> None:
    with written(shards, pad) as (folder, body):
        expected = oracle(folder)
        streamed = dict(p2pcache.iter_tensors(folder, memory_limit=limit))
        loaded = p2pcache.load(folder)
        with p2pcache.safe_open(folder) as model:
            opened = {name: model.get_tensor(name) for name in model.keys()}  # noqa: SIM118
        into = {name: torch.empty_like(t) for name, t in expected.items()}
        report = p2pcache.load_into(into, folder, memory_limit=limit)
        assert report.bytes == sum(map(len, body.values()))
        mapped = dict(p2pcache.iter_tensors(folder, memory="mapped"))
        with p2pcache.safe_open(folder, memory="mapped") as model:
            lazily = {name: model.get_tensor(name) for name in model.keys()}  # noqa: SIM118
        lent = {
            name: torch_bytes(t)
            for name, t in p2pcache.iter_tensors(folder, memory_limit=limit, owned=False)
        }
        for found in (streamed, loaded, opened, into, mapped, lazily):
            same(found, expected)
        assert lent == body


@CORPUS
@given(specs(sorted(BITS)), st.integers(0, 9))
def test_numpy_and_raw_are_bit_equal(shards: list[list[Spec]], pad: int) -> None:
    with written(shards, pad) as (folder, body):
        arrays = p2pcache.load(folder, framework="np")
        raws: dict[str, RawTensor] = p2pcache.load(folder, framework="raw")
        mapped = p2pcache.load(folder, framework="np", memory="mapped")
        raw_maps: dict[str, RawTensor] = p2pcache.load(folder, framework="raw", memory="mapped")
        into = {name: np.empty_like(a) for name, a in arrays.items()}
        buffers = {name: bytearray(len(data)) for name, data in body.items()}
        p2pcache.load_into(into, folder)
        p2pcache.load_into(buffers, folder)
        wanted = {spec.name: spec for tensors in shards for spec in tensors}
        assert arrays.keys() == raws.keys() == body.keys()
        for name, data in body.items():
            spec = wanted[name]
            assert arrays[name].dtype == numpy_dtype(spec.dtype)
            if spec.dtype not in PACKED:
                assert arrays[name].shape == spec.shape
            assert (raws[name].dtype, raws[name].shape) == (spec.dtype, spec.shape)
            assert arrays[name].tobytes() == into[name].tobytes() == data
            assert (mapped[name].dtype, mapped[name].shape) == (
                arrays[name].dtype,
                arrays[name].shape,
            )
            assert mapped[name].tobytes() == bytes(raw_maps[name].data) == data
            assert bytes(raws[name].data) == bytes(buffers[name]) == data


@CORPUS
@given(st.data(), st.integers(0, 9))
def test_slices_are_what_get_slice_gives(data: st.DataObject, pad: int) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    if data.draw(st.booleans()):
        shape = (*shape[:2], 3000, 20)
    dtype = data.draw(st.sampled_from(["BF16", "F32", "U8", "F8_E4M3"]))
    with written([[Spec("x", "U8", (3,)), Spec("w", dtype, shape)]], pad) as (folder, _):
        index: list[Any] = []
        for length in shape:
            start = data.draw(st.integers(0, length - 1))
            index.append(
                data.draw(
                    st.sampled_from([slice(None), slice(start, length), slice(0, start), start])
                )
            )
        index = index[: data.draw(st.integers(1, len(shape)))]
        with (
            safetensors.safe_open(folder / "model-0.safetensors", "pt") as theirs,
            p2pcache.safe_open(folder) as ours,
            p2pcache.safe_open(folder, memory="mapped") as mapped,
        ):
            whole = theirs.get_tensor("w")
            found = ours.get_slice("w")[tuple(index)]
            assert torch_bytes(found) == torch_bytes(whole[tuple(index)])
            assert found.shape == whole[tuple(index)].shape
            same({"w": mapped.get_slice("w")[tuple(index)]}, {"w": found})
            dim = data.draw(st.integers(0, len(shape) - 1))
            size = data.draw(
                st.sampled_from([n for n in range(1, shape[dim] + 1) if shape[dim] % n == 0])
            )
            share = shape[dim] // size
            for rank in range(min(size, 4)):
                axis = p2pcache.ParallelAxis("tensor", rank, size, dim, "w")
                part = p2pcache.load(folder, parallel=[axis], filter="w")["w"]
                same(p2pcache.load(folder, parallel=axis, filter="w", memory="mapped"), {"w": part})
                cut = (slice(None),) * dim + (slice(rank * share, (rank + 1) * share),)
                expected = theirs.get_slice("w")[cut]
                assert part.shape == expected.shape
                assert torch_bytes(part) == torch_bytes(expected)
