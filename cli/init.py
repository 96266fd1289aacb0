"""`p2pcache-init SRC DEST`: put the model of a `p2pcache://` address into a directory.

KServe calls a storage initializer like this; the exit codes are those of `p2pcache pull`. With
`--compile-cache ENGINE` in front it puts what that engine compiled for the model there, if it was
saved; options after ENGINE are those of `p2pcache compile-cache restore`.
"""

import sys

from p2pcache.cli.main import main as p2pcache
from p2pcache.cli.support.output import end_notes, note
from p2pcache.errors import UsageError
from p2pcache.ids import SCHEME, Ref

_ADDRESS = "p2pcache://[NAMESPACE/]NAME[:TAG][@blake3:HEX] DIRECTORY"
_USAGE = f"usage: p2pcache-init {_ADDRESS}, or p2pcache-init --compile-cache ENGINE [OPTION]... {_ADDRESS}"


def main(argv: list[str] | None = None) -> int:
    """Run `p2pcache pull --to` or `compile-cache restore`, and return the exit code.

    Args:
        argv: the arguments without the program's name; None: those of this process.
    """
    args = sys.argv[1:] if argv is None else argv
    if args in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    compiled: list[str] | None = None
    if args[:1] == ["--compile-cache"] and len(args) > 3:
        compiled, args = [f"--engine={args[1]}", *args[2:-2]], args[-2:]
    if len(args) != 2:
        return _usage(f"takes two arguments, got {len(args)}")
    source, target = args
    if not source.startswith(SCHEME):
        return _usage(f"not a {SCHEME} address: {source!r}")
    try:
        ref = Ref.parse(source.removeprefix(SCHEME).rstrip("/"))
    except UsageError as error:
        return _usage(str(error))
    if compiled is not None:
        place = [str(ref), f"--dir={target}", "--optional"]
        return p2pcache(["compile-cache", "restore", *place, *compiled])
    return p2pcache(["pull", str(ref), f"--to={target}"])


def _usage(problem: str) -> int:
    note(f"p2pcache-init: error: {' '.join(problem.split())}; {_USAGE}")
    end_notes()
    return 2


if __name__ == "__main__":
    sys.exit(main())
