"""The dtypes of safetensors in torch, in numpy, and as raw bytes.

torch, numpy and ml_dtypes are optional; each is imported when its first tensor is made. Two F4
elements share a byte: in torch they are `float4_e2m1fn_x2`, whose last dimension is halved. No
framework has the F6 formats; they come as packed bytes, flat `uint8`.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

from p2pcache.errors import UsageError

Framework = Literal["pt", "np", "raw"]
FRAMEWORKS: tuple[Framework, ...] = ("pt", "np", "raw")


class _Names(NamedTuple):
    bits: int  # of one element
    torch: str  # "": torch has none
    numpy: str  # "": numpy itself has none
    ml_dtypes: str = ""


_TABLE = {
    "BOOL": _Names(8, "bool", "bool"),
    "U8": _Names(8, "uint8", "uint8"),
    "I8": _Names(8, "int8", "int8"),
    "U16": _Names(16, "uint16", "uint16"),
    "I16": _Names(16, "int16", "int16"),
    "U32": _Names(32, "uint32", "uint32"),
    "I32": _Names(32, "int32", "int32"),
    "U64": _Names(64, "uint64", "uint64"),
    "I64": _Names(64, "int64", "int64"),
    "F16": _Names(16, "float16", "float16"),
    "F32": _Names(32, "float32", "float32"),
    "F64": _Names(64, "float64", "float64"),
    "C64": _Names(64, "complex64", "complex64"),
    "BF16": _Names(16, "bfloat16", "", "bfloat16"),
    "F8_E4M3": _Names(8, "float8_e4m3fn", "", "float8_e4m3fn"),
    "F8_E4M3FNUZ": _Names(8, "float8_e4m3fnuz", "", "float8_e4m3fnuz"),
    "F8_E5M2": _Names(8, "float8_e5m2", "", "float8_e5m2"),
    "F8_E5M2FNUZ": _Names(8, "float8_e5m2fnuz", "", "float8_e5m2fnuz"),
    "F8_E8M0": _Names(8, "float8_e8m0fnu", "", "float8_e8m0fnu"),
    "F4": _Names(4, "float4_e2m1fn_x2", ""),
    "F6_E2M3": _Names(6, "", ""),
    "F6_E3M2": _Names(6, "", ""),
}
# Bits of one element, by safetensors' word.
BITS: dict[str, int] = {word: names.bits for word, names in _TABLE.items()}
_PACKED = "uint8"  # for dtypes that a framework lacks


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor without torch and numpy: its bytes in C order, little-endian."""

    dtype: str  # safetensors' word, such as "BF16"
    shape: tuple[int, ...]  # in elements
    data: memoryview  # of bytes


def native_shape(word: str, shape: tuple[int, ...], framework: Framework) -> tuple[int, ...]:
    """The shape that a tensor has in a framework.

    Args:
        word: safetensors' word for the dtype.
        shape: in elements.
        framework: of the tensor.

    Returns:
        `shape`; for dtypes below 8 bits the shape in bytes, flat unless torch can pack the last dimension.
    """
    bits = BITS[word]
    if bits >= 8 or framework == "raw":
        return shape
    count = bits
    for length in shape:
        count *= length
    if bits == 4 and framework == "pt" and shape and shape[-1] % 2 == 0:
        return (*shape[:-1], shape[-1] // 2)
    return (count // 8,)


@cache
def torch_dtype(word: str) -> Any:
    """The torch dtype for safetensors' word.

    Raises:
        UsageError: torch is missing, or this version lacks the dtype.
    """
    torch = import_torch()
    found = getattr(torch, _TABLE[word].torch or _PACKED, None)
    if found is None:
        raise UsageError(
            f"torch {torch.__version__} has no dtype for {word}; update torch or ask for "
            "framework='raw'"
        )
    return found


@cache
def numpy_dtype(word: str) -> Any:
    """The numpy dtype for safetensors' word; BF16 and the 8-bit floats are those of ml_dtypes.

    Raises:
        UsageError: numpy or ml_dtypes is missing.
    """
    np = import_numpy()
    names = _TABLE[word]
    if not names.ml_dtypes:
        return np.dtype(names.numpy or _PACKED)
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            f"numpy has no dtype for {word}; pip install ml_dtypes, or ask for framework='pt' or 'raw'"
        ) from None
    return np.dtype(getattr(ml_dtypes, names.ml_dtypes))


def import_torch() -> Any:
    """Import torch.

    Raises:
        UsageError: it isn't installed.
    """
    try:
        import torch
    except ImportError:
        raise UsageError(
            "torch is not installed; pip install torch, or ask for framework='np' or 'raw'"
        ) from None
    return torch


def import_numpy() -> Any:
    """Import numpy.

    Raises:
        UsageError: it isn't installed.
    """
    try:
        import numpy as np
    except ImportError:
        raise UsageError(
            "numpy is not installed; pip install numpy, or ask for framework='raw'"
        ) from None
    return np
