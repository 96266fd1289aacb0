"""What Python says when the system allows no more threads or open files."""

import errno
from pathlib import Path

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.disk.disk import disk_errors
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.process_limits import limit_reached


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (RuntimeError("can't start new thread"), ("pids", "TasksMax", "ulimit -u")),
        (OSError(errno.EMFILE, "Too many open files"), ("LimitNOFILE", "ulimit -n")),
        (OSError(errno.ENFILE, "Too many open files in system"), ("fs.file-max",)),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ("MemoryMax", "ulimit -v")),
        (MemoryError(), ("MemoryMax", "ulimit -v")),
    ],
)
def test_the_limits_are_named(error: Exception, names: tuple[str, ...]) -> None:
    found = limit_reached(error)
    assert found is not None
    assert all(name in str(found) for name in names)


@pytest.mark.parametrize("error", [RuntimeError("loop is closed"), OSError(errno.EIO, "x")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    assert limit_reached(error) is None


def test_a_file_that_can_t_be_opened_for_the_limit_is_not_a_faulty_disk() -> None:
    with pytest.raises(NotAllowed, match="LimitNOFILE"), disk_errors("the cache"):
        raise OSError(errno.EMFILE, "Too many open files")


def test_storage_in_a_directory_may_be_read_once_others_have_closed_their_files(
    tmp_path: Path,
) -> None:
    found = FileOrigin(f"file://{tmp_path}").failure("x", OSError(errno.EMFILE, "Too many"))
    assert found.retryable
    assert "LimitNOFILE" in str(found)
