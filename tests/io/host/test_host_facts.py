"""Facts about the machine that runs the tests."""

import os
import socket
import time
from pathlib import Path

import pytest

from p2pcache.errors import NotAllowed, P2PCacheError
from p2pcache.io.host import host_facts
from p2pcache.io.http.own_addresses import first_address


def test_interfaces() -> None:
    loopback = host_facts.interface_of("127.0.0.1")
    assert loopback is not None
    assert loopback.up
    assert loopback.mtu > 1000
    assert host_facts.interface_of("192.0.2.7") is None
    address = first_address()
    assert not address or host_facts.interface_of(address) is not None
    assert host_facts.source_towards("127.0.0.1") == "127.0.0.1"
    assert host_facts.source_towards("no.such.host.invalid") == ""
    assert host_facts.address_of("127.0.0.1") == "127.0.0.1"


def test_the_clock_and_the_kernel_tell_something() -> None:
    assert host_facts.clock_synchronised() in (True, False, None)
    for size in host_facts.tcp_buffers().values():
        assert size > 4096


def test_limits() -> None:
    assert host_facts.file_limit(os.getpid()) == host_facts.file_limit()
    with pytest.raises(NotAllowed, match="limits"):
        host_facts.file_limit(2**22 + 1)


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    write, read = host_facts.disk_speed(tmp_path)
    assert write > 0
    assert read > 0
    assert list(tmp_path.iterdir()) == []
    free, total = host_facts.space(tmp_path)
    assert 0 < free <= total
    assert host_facts.file_system(tmp_path) != "unknown"
    with pytest.raises(P2PCacheError):
        host_facts.disk_speed(Path("/proc"))


def test_folders(tmp_path: Path) -> None:
    there = tmp_path / "cache"
    before = host_facts.folder(there / "deep")
    assert not before.exists
    assert before.nearest == tmp_path
    there.mkdir(mode=0o750)
    found = host_facts.folder(there)
    assert (found.exists, found.mode, found.uid) == (True, 0o750, os.geteuid())
    assert found.writable
    assert found.closed
    assert host_facts.owner(there) == os.geteuid()
    assert host_facts.owner(there / "none") is None
    assert not host_facts.is_socket(there)


def test_which_users_can_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(mode=0o600)
    assert host_facts.can_read(os.geteuid(), file.stat())
    assert host_facts.can_read(0, file.stat())
    assert not host_facts.can_read(54321, file.stat())
    file.chmod(0o604)
    assert host_facts.can_read(54321, file.stat())


def test_the_address_for_peers() -> None:
    """Towards a tracker elsewhere it is the one that leads there; else any but loopback."""
    assert host_facts.address_for_peers("") == first_address()
    assert host_facts.address_for_peers("http://127.0.0.1:7400") == first_address()
    assert host_facts.address_for_peers("http://[broken") == first_address()
    elsewhere = host_facts.source_towards("192.0.2.1")  # nothing is sent; "" without any route
    assert host_facts.address_for_peers("http://192.0.2.1:7400") == (elsewhere or first_address())


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_facts, "LOOK_UP_S", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: time.sleep(20))
    began = time.monotonic()
    assert host_facts.source_towards("tracker.example") == ""
    assert host_facts.address_of("tracker.example") == "tracker.example"
    with pytest.raises(TimeoutError, match="does DNS answer"):
        host_facts.look_up("tracker.example", 7400, socket.SOCK_STREAM)
    assert host_facts.address_for_peers("http://tracker.example:7400") == first_address()
    assert time.monotonic() - began < 5
