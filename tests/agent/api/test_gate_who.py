"""The audit log names the pod of a caller."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from p2pcache.io.host import processes
from p2pcache.io.host.processes import Process
from p2pcache.io.http.endpoint import HOST_HEADER
from tests.agent.kit import agent, client

UID = "1a2b3c4d-0000-1111-2222-333344445555"


async def audited(tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "p2pcache.audit"):
        async with agent(tmp_path) as app, client(app) as session:
            async with session.post("/v1/prune", json={}, headers=headers) as answer:
                assert answer.status == 200
    (line,) = (r.getMessage() for r in caplog.records if "action=prune" in r.getMessage())
    return line


async def test_the_pod_is_that_of_the_control_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = f"0::/kubepods/pod{UID}/{'ab' * 32}\n"
    fields = processes.fields_of(groups)
    monkeypatch.setattr("p2pcache.agent.api.gate.owner_fields", lambda _pid: fields)
    line = await audited(tmp_path, caplog, {HOST_HEADER: "vllm-7f9c-x2"})
    assert f"pod={UID} container=abababababab says=vllm-7f9c-x2" in line


async def test_a_hidden_process_is_no_pid_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Process(0, 0, 0, frozenset({0}))
    monkeypatch.setattr("p2pcache.agent.api.gate.peer_of", lambda _transport: peer)
    line = await audited(tmp_path, caplog, {HOST_HEADER: 'x" result=ok\n'.strip()})
    assert 'who="uid=0 pid=hidden"' in line  # no text that isn't a host name
    assert "pid=0" not in line


async def test_our_client_says_its_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "p2pcache.audit"):
        async with agent(tmp_path) as app:
            command = [sys.executable, "-m", "p2pcache.cli.main", "prune", "--agent",
                       f"unix://{app.settings.socket}"]  # fmt: skip
            host = ["unshare", "--uts", "sh", "-c", 'hostname pod-7 && exec "$@"', "sh"]
            done = await asyncio.to_thread(
                subprocess.run, [*host, *command], capture_output=True, text=True, check=False
            )
            if "unshare" in done.stderr:
                pytest.skip("needs root, for a host name of its own")
            assert done.returncode == 0, done.stderr
    assert "says=pod-7" in caplog.text
