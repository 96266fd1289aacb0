"""`p2pcache-init SRC DEST`: the model of a `p2pcache://` address put into a directory, then the end.

This is how KServe calls a storage initializer; the exit codes are those of `p2pcache pull`.
"""

import sys

from p2pcache.cli.main import main as p2pcache
from p2pcache.errors import UsageError
from p2pcache.ids import Ref

SCHEME = "p2pcache://"
_USAGE = "usage: p2pcache-init p2pcache://[NAMESPACE/]NAME[:TAG][@blake3:HEX] DIRECTORY"


def main(argv: list[str] | None = None) -> int:
    """Pull and materialise with the caller's own rights; returns the exit code."""
    args = sys.argv[1:] if argv is None else argv
    if args in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if len(args) != 2:
        return _usage(f"takes two arguments, got {len(args)}")
    source, target = args
    if not source.startswith(SCHEME):
        return _usage(f"not a {SCHEME} address: {source!r}")
    try:
        ref = Ref.parse(source.removeprefix(SCHEME).rstrip("/"))
    except UsageError as error:
        return _usage(str(error))
    return p2pcache(["pull", str(ref), f"--to={target}"])


def _usage(problem: str) -> int:
    print(f"p2pcache-init: error: {' '.join(problem.split())}; {_USAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
