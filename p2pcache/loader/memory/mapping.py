"""Private mappings of files: memory that is the page cache's until somebody writes to it.

A page that is written to becomes this process' own (copy on write); the file never changes. A file
that gets shorter while it is mapped ends the process at the next access (SIGBUS), so only files that
nobody changes are mapped.
"""

import ctypes
import mmap
import os
import sys
import weakref
from typing import Any

# Otherwise the kernel may refuse a file that is larger than the memory, since all of it could be written to.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11's mmap lacks the name
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_int64]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_private(fd: int, nbytes: int) -> Any:
    """Map the first bytes of a file. Python's own mmap would keep a descriptor for each file.

    Args:
        fd: the open file; it isn't needed afterwards.
        nbytes: how many, above 0 and at most the file's size.

    Returns:
        An object with the buffer protocol. The mapping ends with its last view.

    Raises:
        OSError: the system refused.
    """
    address = _libc.mmap(
        None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _NORESERVE, fd, 0
    )
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    owner = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(owner, _libc.munmap, address, nbytes).atexit = False
    return owner
