"""An agent that lies: a real member with the cluster key, whose every served chunk has a wrong byte.

Started like the `p2pcache` command: `python -m loadtest.kit.liar agent ...`. What it keeps is honest.
"""

import os
import sys

from p2pcache.cli.main import main
from p2pcache.io.blobs.blob_file import ChunkSource, OpenFile
from p2pcache.io.models.model_chunks import ModelStore

_honest = ModelStore.source


def _lie(store: ModelStore, chunk: int) -> ChunkSource:
    """The chunk from a file in memory, its middle byte flipped."""
    true = _honest(store, chunk)
    data = bytearray(os.pread(true.fd, true.length, true.offset))
    data[true.length // 2] ^= 0xFF
    fd = os.memfd_create("forgery")
    os.write(fd, data)
    return ChunkSource(fd, 0, true.length, OpenFile(fd))


if __name__ == "__main__":
    setattr(ModelStore, "source", _lie)  # noqa: B010 - a patch, and seen as one
    sys.exit(main())
