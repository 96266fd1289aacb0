"""Tensors' descriptions for tests of plans."""

from p2pcache.loader.format.dtypes import BITS
from p2pcache.loader.format.header import TensorInfo


def info(
    name: str, shape: tuple[int, ...] = (8,), start: int = 100, dtype: str = "U8", path: str = "f"
) -> TensorInfo:
    bits = BITS[dtype]
    for length in shape:
        bits *= length
    return TensorInfo(name, dtype, shape, path, start, start + bits // 8)


def table(names: list[str]) -> list[TensorInfo]:
    return [info(name, start=8 * i) for i, name in enumerate(names)]
