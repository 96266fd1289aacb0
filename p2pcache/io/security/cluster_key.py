"""Reading the cluster key, and the rule for listening without one."""

import ipaddress
import os
import stat

from p2pcache.core.protocol.handshake import Secret
from p2pcache.errors import NotAllowed, UsageError
from p2pcache.io.byte_order_mark import without_mark

NO_KEY = Secret(b"")  # loopback or --insecure: the handshake then proves nothing
MIN_KEY_BYTES = 32  # as much as HMAC-SHA256 can use against guessing
MAX_KEY_BYTES = 4096  # more isn't a key, it is the wrong file
_HOW = "make one with: (umask 077; head -c 32 /dev/urandom | base64 > FILE)"


def read_cluster_key(path: str, what: str = "cluster key") -> Secret:
    """Read a cluster key: one line of text, 32 bytes or more, nobody else's to read.

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
        return NO_KEY
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            check_secret_file(path, os.fstat(fd), f"the {what} file")
            data = os.read(fd, 2 * MAX_KEY_BYTES + 8)
        finally:
            os.close(fd)
    except OSError as error:
        raise NotAllowed(f"can't read the {what} file {path}: {error.strerror}; {_HOW}") from None
    key = without_mark(data).rstrip(b"\r\n")
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise UsageError(
            f"the {what} in {path} must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes; {_HOW}"
        )
    return Secret(key)


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
