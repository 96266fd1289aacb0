"""What Python says when the system allows no more threads, in our own words."""

from p2pcache.errors import NotAllowed


def no_more_threads(error: BaseException) -> NotAllowed | None:
    """The error of our tree, if this one says that no thread could be started."""
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return NotAllowed(
            "the system allows no more threads here; raise the limit on processes (a pod's or container's pids "
            "limit, systemd's TasksMax, ulimit -u)"
        )
    return None
