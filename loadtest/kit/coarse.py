"""A push that cuts large files into chunks of a given size, so that a small model has the runs of a large one.

Started like the `p2pcache` command, with bytes before its arguments: `python -m loadtest.kit.coarse 4194304 push ...`.
Readers take any cuts, since a manifest lists its lengths.
"""

import sys

from p2pcache.cli.main import main
from p2pcache.core.format import chunking

if __name__ == "__main__":
    chunk_bytes = int(sys.argv.pop(1))
    setattr(chunking, "nominal_chunk_bytes", lambda _size_bytes: chunk_bytes)  # noqa: B010 - a patch, and seen as one
    sys.exit(main())
