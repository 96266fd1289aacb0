"""Tensors over host memory that already has their bytes, and the bytes behind a caller's tensors."""

from typing import Any

from p2pcache.errors import UsageError
from p2pcache.loader.format.dtypes import (
    Framework,
    RawTensor,
    import_numpy,
    import_torch,
    native_shape,
    numpy_dtype,
    torch_dtype,
)


def wrap(
    owner: object, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...], to: Framework
) -> Any:
    """Make a tensor over host memory, without a copy. It keeps the memory alive.

    Args:
        owner: the memory: writable, with the buffer protocol.
        offset: where in it the tensor begins, in bytes.
        nbytes: of the tensor.
        dtype: safetensors' word.
        shape: in elements.
        to: the caller's framework.

    Returns:
        A torch tensor, a numpy array or a `RawTensor`; its shape is `native_shape(...)`.

    Raises:
        UsageError: the framework is missing or has no such dtype.
    """
    if to == "raw":
        view = memoryview(owner)[offset : offset + nbytes]  # type: ignore[arg-type]
        return RawTensor(dtype, shape, view.cast("B") if view.format != "B" else view)
    seen = native_shape(dtype, shape, to)
    if to == "np":
        np = import_numpy()
        if nbytes == 0:
            return np.empty(seen, dtype=numpy_dtype(dtype))
        flat = np.frombuffer(owner, dtype=np.uint8, count=nbytes, offset=offset)
        return flat.view(numpy_dtype(dtype)).reshape(seen)
    torch = import_torch()
    if nbytes == 0:
        return torch.empty(seen, dtype=torch_dtype(dtype), device="cpu")
    native = torch_dtype(dtype)  # a view by way of bytes takes several times as long
    count = nbytes // native.itemsize
    return torch.frombuffer(owner, dtype=native, count=count, offset=offset).reshape(seen)


def writable_bytes(target: Any, dtype: str, shape: tuple[int, ...]) -> memoryview | None:
    """The bytes behind a caller's host tensor, if a tensor of the model can be read straight into them.

    Args:
        target: a torch tensor, a numpy array or a buffer.
        dtype: of the model's tensor: safetensors' word.
        shape: of the model's tensor, in elements.

    Returns:
        A flat view of bytes; None if the target has another dtype, strides, or is on a device.

    Raises:
        UsageError: the shapes differ, or the target can't be filled.
    """
    kind = framework_of(target)
    if kind == "raw":
        view = memoryview(target).cast("B")
        if view.readonly:
            raise UsageError("a target buffer is read-only; give a bytearray or the like")
        return view
    if tuple(target.shape) != native_shape(dtype, shape, kind):
        raise UsageError(
            f"the target has the shape {list(target.shape)}, the model {list(native_shape(dtype, shape, kind))}"
        )
    if kind == "np":
        if not target.flags.writeable:
            raise UsageError("the target array is read-only")
        if target.dtype != numpy_dtype(dtype) or not target.flags.c_contiguous:
            return None
        return memoryview(target.reshape(-1).view(import_numpy().uint8))
    if any(step == 0 and n > 1 for step, n in zip(target.stride(), target.shape, strict=True)):
        raise UsageError("the target is an expanded view, whose elements share memory; clone it")
    if target.dtype != torch_dtype(dtype) or target.device.type != "cpu":
        return None
    flat = flat_bytes(target)
    return None if flat is None else memoryview(flat.numpy())


def flat_bytes(target: Any) -> Any:
    """A torch tensor as a flat uint8 tensor over the same memory; None if its values don't lie there as they are."""
    if not target.is_contiguous() or target.is_conj() or target.is_neg():
        return None
    # torch calls a tensor contiguous whatever the stride of a dimension of length 1, but its `view`
    # to bytes refuses such strides.
    return target.detach().as_strided((target.numel(),), (1,)).view(import_torch().uint8)


def framework_of(target: object) -> Framework:
    """The framework of a tensor, array or buffer.

    Raises:
        UsageError: it is none of these.
    """
    root = type(target).__module__.partition(".")[0]
    if hasattr(target, "data_ptr") and hasattr(target, "is_contiguous"):  # any subclass, too
        return "pt"
    if root == "numpy" and hasattr(target, "shape"):
        return "np"
    if isinstance(target, bytearray | memoryview):
        return "raw"
    raise UsageError(f"can't load into a {type(target).__name__}; give a torch or numpy tensor")
