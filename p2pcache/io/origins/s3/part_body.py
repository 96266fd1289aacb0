"""A part of an upload as botocore takes it: a file in memory, whose bytes aren't copied once more."""

from io import SEEK_CUR, SEEK_END, SEEK_SET


class PartBody:
    """Reads a buffer that nobody changes meanwhile.

    Plain bytes would do, but botocore makes them a file that copies what is read from it.
    """

    def __init__(self, data: bytearray) -> None:
        """Stand at the first byte."""
        self._view = memoryview(data)
        self._at = 0

    def __len__(self) -> int:
        """All bytes, wherever it stands."""
        return len(self._view)

    def read(self, size: int = -1) -> memoryview:
        """The next bytes, at most `size` unless that is negative; none at the end."""
        end = len(self._view) if size < 0 else min(self._at + size, len(self._view))
        piece, self._at = self._view[self._at : end], end
        return piece

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        """Stand elsewhere: a request may be sent again."""
        start = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: len(self._view)}[whence]
        self._at = min(max(0, start + offset), len(self._view))
        return self._at

    def tell(self) -> int:
        """Where it stands."""
        return self._at
