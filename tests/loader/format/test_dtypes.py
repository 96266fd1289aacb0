"""The dtypes of safetensors in torch and numpy."""

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from p2pcache.loader.format.dtypes import BITS, native_shape, numpy_dtype, torch_dtype


@pytest.mark.parametrize("word", sorted(BITS))
def test_a_tensor_has_its_bytes_in_every_framework(word: str) -> None:
    shape = (3, 8)
    nbytes = math.prod(shape) * BITS[word] // 8
    in_torch, in_numpy = native_shape(word, shape, "pt"), native_shape(word, shape, "np")
    assert math.prod(in_torch) * torch_dtype(word).itemsize == nbytes
    assert math.prod(in_numpy) * numpy_dtype(word).itemsize == nbytes
    assert native_shape(word, shape, "raw") == shape


def test_packed_dtypes() -> None:
    assert native_shape("F4", (3, 8), "pt") == (3, 4)
    assert native_shape("F4", (8, 3), "pt") == (12,)  # the last dimension can't be halved
    assert native_shape("F4", (3, 8), "np") == (12,)
    assert native_shape("F6_E2M3", (3, 8), "pt") == (18,)
    assert torch_dtype("F6_E2M3") == torch.uint8
    assert numpy_dtype("F4") == np.uint8


def test_small_floats_of_numpy_are_those_of_ml_dtypes() -> None:
    assert numpy_dtype("BF16") == ml_dtypes.bfloat16
    assert numpy_dtype("F8_E4M3") == ml_dtypes.float8_e4m3fn
