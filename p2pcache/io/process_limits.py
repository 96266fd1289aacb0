"""What Python says when the system allows no more threads, open files or memory, in our own words."""

import errno

from p2pcache.errors import NotAllowed


def limit_reached(error: BaseException) -> NotAllowed | None:
    """The error of our tree, if this one says that no thread could be started, no file opened or no memory had."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return NotAllowed(
            "the system allows no more threads here; raise the limit on processes (a pod's or container's pids "
            "limit, systemd's TasksMax, ulimit -u)"
        )
    if isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno == errno.ENOMEM
    ):
        return NotAllowed(
            "the system allows no more memory here; raise the limit (a pod's or container's memory limit, systemd's "
            "MemoryMax, ulimit -v)"
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return NotAllowed(
            "the system allows no more open files here; raise the limit (systemd's LimitNOFILE, ulimit -n, or "
            "fs.file-max of the machine)"
        )
    return None
