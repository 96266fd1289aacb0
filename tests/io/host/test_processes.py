"""Who a process is: at the other end of a socket, and by its control group."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from p2pcache.errors import NotAllowed
from p2pcache.io.host import processes

UID = "1a2b3c4d-0000-1111-2222-333344445555"
HEX = "ab" * 32


KUBEPODS = f"0::/kubepods.slice/kubepods-x.slice/kubepods-x-pod{UID.replace('-', '_')}.slice"


@pytest.mark.parametrize(("groups", "fields"), [
    (f"{KUBEPODS}/cri-containerd-{HEX}.scope\n", {"pod": UID, "container": HEX[:12]}),
    (f"0::/../../kubepods/besteffort/pod{UID}/{HEX}\n", {"pod": UID, "container": HEX[:12]}),
    (f"12:cpu:/kubepods/pod{UID}/{HEX}\n0::/\n", {"pod": UID, "container": HEX[:12]}),
    (f"0::/system.slice/docker-{HEX}.scope\n", {"container": HEX[:12]}),
    (f"0::/docker/{HEX}\n", {"container": HEX[:12]}),
    ("0::/system.slice/vllm@7.service\n", {"unit": "vllm@7.service"}),
    ("0::/user.slice/user-0.slice/session-1.scope\n", {}),
    ("", {}),
])  # fmt: skip
def test_the_control_group_names_the_pod(groups: str, fields: dict[str, str]) -> None:
    assert processes.fields_of(groups) == fields


def test_a_process_of_another_namespace_has_no_fields() -> None:
    assert processes.owner_fields(0) == {}
    assert processes.owner_fields(2**30) == {}


CONNECT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"


async def test_the_kernel_names_the_process_that_connected(tmp_path: Path) -> None:
    callers: asyncio.Queue[processes.Process] = asyncio.Queue()

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.put_nowait(processes.peer_of(writer.transport))
        writer.close()

    path = str(tmp_path / "s.sock")
    groups = [4321] if os.geteuid() == 0 else None  # only root may choose
    server = await asyncio.start_unix_server(connected, path)
    async with server:
        command = [sys.executable, "-S", "-c", CONNECT, path]
        with subprocess.Popen(command, extra_groups=groups) as other:
            async with asyncio.timeout(60):
                caller = await callers.get()
            assert await asyncio.to_thread(other.wait, 60) == 0
    assert (caller.pid, caller.uid, caller.gid) == (other.pid, os.getuid(), os.getgid())
    assert caller.groups == {os.getgid(), *(groups or os.getgroups())}


def transport(sock: object) -> Any:
    return SimpleNamespace(get_extra_info=lambda _: sock)


def test_who_has_gone_is_refused() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    for gone in (None, transport(None), transport(ours)):
        with pytest.raises(NotAllowed, match="doesn't tell who is calling"):
            processes.peer_of(gone)


def test_a_kernel_that_tells_no_groups_tells_the_first_one() -> None:
    class Old:
        """A socket of a kernel without SO_PEERGROUPS."""

        def getsockopt(self, _level: int, option: int, size: int) -> bytes:
            if option != socket.SO_PEERCRED:
                raise OSError(92, "Protocol not available")
            return bytes(size)

    assert processes.peer_of(transport(Old())).groups == {0}
