import os
from pathlib import Path

import pytest

from p2pcache.core.protocol.handshake import Secret
from p2pcache.errors import NotAllowed, P2PCacheError, UsageError
from p2pcache.io.security import cluster_key

KEY = b"0123456789abcdef0123456789abcdef"


def write(path: Path, data: bytes, mode: int = 0o600) -> str:
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


def test_reads_a_key(tmp_path: Path) -> None:
    path = write(tmp_path / "key", KEY + b"\n")
    assert cluster_key.read_cluster_key(path).key == KEY
    link = tmp_path / "link"
    link.symlink_to(path)
    assert cluster_key.read_cluster_key(str(link)).key == KEY
    assert cluster_key.read_cluster_key("") == cluster_key.NO_KEY


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_an_editor_s_byte_order_mark_is_no_part_of_the_key(tmp_path: Path, encoding: str) -> None:
    path = write(tmp_path / "key", (KEY.decode() + "\r\n").encode(encoding))
    assert cluster_key.read_cluster_key(path).key == KEY


@pytest.mark.parametrize("start", [b"\xff\xfe", b"\xfe\xff"])
def test_bytes_that_only_look_like_a_mark_stay(tmp_path: Path, start: bytes) -> None:
    key = start + bytes(range(64, 128))[::-1] + b"\x00\x00"
    assert cluster_key.read_cluster_key(write(tmp_path / "key", key)).key == key


@pytest.mark.parametrize("mode", [0o604, 0o660, 0o602, 0o601, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", KEY, mode)
    with pytest.raises(NotAllowed, match="chmod 600"):
        cluster_key.read_cluster_key(path)


def test_group_may_read(tmp_path: Path) -> None:
    assert cluster_key.read_cluster_key(write(tmp_path / "key", KEY, 0o640)).key == KEY


@pytest.mark.parametrize("data", [b"", b"short\n", b"x" * 5000])
def test_refuses_wrong_sizes_without_telling_the_key(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path / "key", data)
    with pytest.raises(UsageError) as caught:
        cluster_key.read_cluster_key(path)
    assert "short" not in str(caught.value)


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="make one with"):
        cluster_key.read_cluster_key(str(tmp_path / "missing"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(P2PCacheError):
        cluster_key.read_cluster_key(str(tmp_path / "fifo"))
    with pytest.raises(UsageError):
        cluster_key.read_cluster_key(str(tmp_path))


@pytest.mark.parametrize(
    ("host", "fine"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("node-7", False)],
)  # fmt: skip
def test_exposure(host: str, *, fine: bool) -> None:
    assert cluster_key.is_loopback(host) is fine
    cluster_key.check_exposure(host, Secret(KEY), insecure=False)
    cluster_key.check_exposure(host, cluster_key.NO_KEY, insecure=True)
    if fine:
        cluster_key.check_exposure(host, cluster_key.NO_KEY, insecure=False)
    else:
        with pytest.raises(UsageError, match="cluster-key-file"):
            cluster_key.check_exposure(host, cluster_key.NO_KEY, insecure=False)


NEW = b"fedcba9876543210fedcba9876543210"


def test_a_second_line_is_another_key_that_is_taken(tmp_path: Path) -> None:
    for text in (KEY + b"\n" + NEW + b"\n", KEY + b"\r\n" + NEW):
        found = cluster_key.read_cluster_key(write(tmp_path / "key", text))
        assert (found.key, found.others) == (KEY, (NEW,))
    raw = KEY[:20] + b"\n" + NEW  # random bytes that hold the end of a line
    assert cluster_key.read_cluster_key(write(tmp_path / "key", raw)) == Secret(raw)


async def test_a_changed_file_holds_for_all_who_have_the_secret(tmp_path: Path) -> None:
    path, changes = tmp_path / "key", list[int]()
    write(path, KEY)
    secret = cluster_key.read_cluster_key(str(path))
    watch = cluster_key.KeyWatch(str(path), secret, on_change=lambda: changes.append(1))
    await watch.watch()
    assert not changes
    write(path, NEW + b"\n" + KEY)
    await watch.watch()
    await watch.watch()
    assert (secret.key, secret.others, changes) == (NEW, (KEY,), [1])
    write(path, b"short")
    await watch.watch()
    path.unlink()
    await watch.watch()
    assert (secret.key, changes) == (NEW, [1])


def test_who_may_not_read_the_key_is_not_told_to_make_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotAllowed, match="root or as a member of group p2pcache") as caught:
        cluster_key.read_cluster_key(str(tmp_path / "key"))
    assert "make one" not in str(caught.value)
