"""Reading the cluster key, and the rule for listening without one."""

import ipaddress
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

from p2pcache.core.protocol.handshake import Secret
from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io.byte_order_mark import without_mark

NO_KEY = Secret(b"")  # loopback or --insecure: the handshake then proves nothing
MIN_KEY_BYTES = 32  # as much as HMAC-SHA256 can use against guessing
MAX_KEY_BYTES = 4096  # more isn't a key, it is the wrong file
MAX_KEYS = 2  # in one file: while the key is changed, the old one and the new one
WATCH_S = 10.0  # between two looks at a key file
ASK_FOR_RIGHTS = "run this as root or as a member of group p2pcache"
_log = logging.getLogger(__name__)
_HOW = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


def read_cluster_key(path: str, what: str = "cluster key") -> Secret:
    """Read a cluster key: one line of text, 32 bytes or more, nobody else's to read.

    A second line is another key that members may hold while the key is changed (docs/trust.md).

    The file may be a link (a mounted Kubernetes secret is one) and group-readable, but others
    may not read it and only root or ourselves may own it.

    Args:
        path: the file; an empty path means no key.
        what: how messages call it; a token key is kept in the same way.

    Raises:
        NotAllowed: the file can't be read, or others could read or change it.
        UsageError: what it holds isn't a key.
    """
    if not path:
        return Secret(b"")  # of its own, since secrets may change
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            check_secret_file(path, os.fstat(fd), f"the {what} file")
            data = os.read(fd, 2 * MAX_KEY_BYTES + 8)
        finally:
            os.close(fd)
    except OSError as error:
        # Who may not read a key must not be told to make another one in its place.
        how = ASK_FOR_RIGHTS if isinstance(error, PermissionError) else _HOW
        raise NotAllowed(f"can't read the {what} file {path}: {error.strerror}; {how}") from None
    key, *others = _keys(without_mark(data).rstrip(b"\r\n"))
    if any(not MIN_KEY_BYTES <= len(one) <= MAX_KEY_BYTES for one in (key, *others)):
        raise UsageError(
            f"the {what} in {path} must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes; {_HOW}"
        )
    return Secret(key, tuple(others))


def _keys(data: bytes) -> list[bytes]:
    """The keys in a file. Random bytes that happen to hold the end of a line are one key."""
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    several = 1 < len(lines) <= MAX_KEYS and all(len(line) >= MIN_KEY_BYTES for line in lines)
    return lines if several else [data]


class KeyWatch:
    """Reads a key file again when it has changed: all parts of the process go over to its keys at once."""

    def __init__(
        self,
        path: str,
        secret: Secret,
        what: str = "cluster key",
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """The file was read already.

        Args:
            path: of the file; empty: there is none.
            secret: what it held; changed in place.
            what: how messages call it.
            on_change: called when `secret` has changed.
        """
        self._path, self._secret, self._what = path, secret, what
        self._on_change = on_change
        self._seen = self._stamp()

    async def watch(self) -> None:
        """Look at the file."""
        if self._stamp() != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file now. Keys that can't be read change nothing, and are logged."""
        if not self._path:
            return
        self._seen = self._stamp()
        try:
            fresh = read_cluster_key(self._path, self._what)
        except P2PCacheError as error:
            _log.error("going on with the %s that was read before: %s", self._what, error)
            return
        if fresh == self._secret:
            return
        self._secret.key, self._secret.others = fresh.key, fresh.others
        also = ", and another one is taken, too" if fresh.others else ""
        _log.info("another %s from %s holds from now on%s", self._what, self._path, also)
        self._on_change()

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            info = Path(self._path).stat()
        except OSError:
            return None
        return info.st_mtime_ns, info.st_ino, info.st_size


def check_secret_file(path: str, info: os.stat_result, what: str) -> None:
    """The rule for files with secrets: regular, closed to others, root's or ours.

    Args:
        path: for the message.
        info: of the open file.
        what: how the message calls it ("the cluster key file").

    Raises:
        NotAllowed, UsageError: the rule is broken; says how to mend it.
    """
    if not stat.S_ISREG(info.st_mode):
        raise UsageError(f"{what} {path} is not a regular file")
    if info.st_mode & 0o027:
        raise NotAllowed(
            f"{what} {path} has mode {stat.S_IMODE(info.st_mode):04o}: others could "
            f"read or change it; run: chmod 600 {path}"
        )
    if info.st_uid not in (0, os.geteuid()):
        raise NotAllowed(f"{what} {path} belongs to user {info.st_uid}; it must be root's or yours")


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host` (an address or "localhost")."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, secret: Secret, *, insecure: bool, tls: bool = False) -> None:
    """Refuse to listen beyond loopback when members prove nothing.

    Args:
        host: the address to listen on.
        secret: the cluster key, or `NO_KEY`.
        insecure: the operator said `--insecure`.
        tls: members show certificates.

    Raises:
        UsageError: says what to set.
    """
    if secret.key or insecure or tls or is_loopback(host):
        return
    raise UsageError(
        f"refusing to listen on {host} without a cluster key: anybody could join; set "
        "--cluster-key-file (or --tls-cert), or listen on 127.0.0.1, or say --insecure"
    )
