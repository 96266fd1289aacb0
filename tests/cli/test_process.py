"""The command as a process: exit codes, signals, pipes and speed, as a shell sees them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli import fake_agent as fakes
from tests.cli.fake_agent import FakeAgent

COMMAND = [sys.executable, "-m", "p2pcache.cli.main"]
# What a quick command must not import: the agent's world, storage clients and drawing.
SLOW = (
    "aiohttp",
    "asyncio",
    "uvloop",
    "botocore",
    "rich",
    "psutil",
    "prometheus_client",
    "blake3",
    "sqlite3",
    "hypothesis",
)


def environment(tmp_path: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("P2PCACHE_")}
    return kept | {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path)}


def start(tmp_path: Path, *args: str, **options: object) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*COMMAND, *args], text=True, env=environment(tmp_path), **pipes)  # type: ignore[call-overload,no-any-return]


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def command(tmp_path: Path, *args: str) -> tuple[int, str, str]:
    return finish(start(tmp_path, *args))


def test_nothing_is_looked_through_at_the_end() -> None:
    """After a pull Python spent 0.3 s on all objects before the process ended."""
    code = """
import gc, sys
from p2pcache.cli.main import main
sys.argv = ["p2pcache", "--version"]
main()
print(gc.get_freeze_count(), len(gc.get_objects()))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    frozen, left = map(int, said.stdout.splitlines()[-1].split())
    assert frozen > 5000
    assert left < 100


@pytest.mark.parametrize("code", [1, 6, 10])
def test_every_error_of_the_agent_becomes_its_exit_code(
    agent: FakeAgent, tmp_path: Path, code: int
) -> None:
    agent.stream("POST /v1/pull", [{"event": "error", "code": code, "message": "so\nit is"}])
    assert command(tmp_path, "pull", "llama", "--agent", agent.address) == (
        code,
        "",
        "p2pcache: error: so it is\n",
    )


def test_usage_errors_are_one_line_and_exit_2(tmp_path: Path) -> None:
    code, out, err = command(tmp_path, "pull", "--nonsense", "x")
    assert (code, out) == (2, "")
    assert err == "p2pcache: error: No such option '--nonsense'; see 'p2pcache pull --help'\n"


def test_an_agent_that_was_named_and_is_not_there_is_exit_8(tmp_path: Path) -> None:
    code, out, err = command(tmp_path, "pull", "llama", "--agent", f"unix://{tmp_path}/none")
    assert (code, out) == (8, "")
    assert err.startswith("p2pcache: error: no agent at")
    assert err.count("\n") == 1


def test_json_errors_are_on_stdout_too(tmp_path: Path) -> None:
    code, out, _ = command(
        tmp_path, "pull", "--json", "llama", "--agent", f"unix://{tmp_path}/none"
    )
    event = json.loads(out)
    assert (event["event"], event["code"], code) == ("error", 8, 8)
    assert "no agent at" in event["message"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_waiting_pull(
    agent: FakeAgent, tmp_path: Path, number: int, code: int
) -> None:
    told = fakes.resolved() | {"abandon_after_s": 90.0}
    agent.stream("POST /v1/pull", [told] + [fakes.progress(1)] * 400, pause_s=0.05)
    process = start(tmp_path, "pull", "llama", "--json", "--agent", agent.address)
    assert process.stdout
    assert "resolved" in process.stdout.readline()
    process.send_signal(number)
    ended, out, err = finish(process)
    assert ended == code
    assert "the agent goes on for 1m30s" in err
    assert "p2pcache cancel llama:latest" in err
    assert err.count("\n") == 1
    assert json.loads(out.splitlines()[-1])["event"] == "error"


def test_a_pull_that_is_interrupted_before_it_began_says_so(
    agent: FakeAgent, tmp_path: Path
) -> None:
    agent.stream(
        "POST /v1/pull", [{"event": "waiting", "for": "x", "seconds": 1}] * 400, pause_s=0.05
    )
    process = start(tmp_path, "pull", "llama", "--json", "--agent", agent.address)
    assert process.stdout
    assert "waiting" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert finish(process)[2] == "p2pcache: error: interrupted; nothing was begun\n"


def test_a_signal_to_the_process_and_its_group_is_one(agent: FakeAgent, tmp_path: Path) -> None:
    """As `timeout` sends it."""
    agent.stream("POST /v1/pull", [fakes.resolved()] * 400, pause_s=0.05)
    process = start(tmp_path, "pull", "llama", "--json", "--agent", agent.address)
    assert process.stdout
    assert "resolved" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    code, _, error = finish(process)
    assert code == 143
    assert error.startswith("p2pcache: error: terminated; ")


def test_a_signal_that_comes_before_python_is_up_is_kept_back(
    agent: FakeAgent, tmp_path: Path
) -> None:
    """As `env --block-signal` in the image does it: the kernel would drop it for PID 1."""
    agent.stream("POST /v1/pull", [fakes.resolved()] * 400, pause_s=0.05)

    def keep_back() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    process = start(tmp_path, "pull", "llama", "--agent", agent.address, preexec_fn=keep_back)
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 143


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of processes needs root")
def test_pid_1_hears_a_signal_while_it_imports(tmp_path: Path) -> None:
    code = (
        "import os, signal, p2pcache.cli; os.kill(os.getpid(), signal.SIGTERM); print(os.getpid())"
    )
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", code],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (143, "")


def test_the_locale_changes_neither_names_nor_digest(tmp_path: Path) -> None:
    locales = tmp_path / "locales"
    locales.mkdir()
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "ISO-8859-1", str(locales / "en_US.ISO-8859-1")],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no localedef, or no locale to make")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "caf\u00e9 \u4e2d").write_text("x")
    (tmp_path / "origin").mkdir()
    latin = {"LOCPATH": str(locales), "LC_ALL": "en_US.ISO-8859-1"}
    said = set()
    for extra in ({}, latin, {"PYTHONIOENCODING": "ascii"}):
        for args in (("push", "model", "team/m:v1"), ("show", "team/m:v1")):
            done = subprocess.run(
                [*COMMAND, *args, "--origin", f"file://{tmp_path}/origin"],
                env={**environment(tmp_path), **extra}, cwd=tmp_path, capture_output=True, timeout=60,
                check=False,
            )  # fmt: skip
            said.add((args[0], done.returncode, done.stdout))
    assert sorted((word, code) for word, code, _ in said) == [("push", 0), ("show", 0)]


def test_the_time_limit_is_exit_9(agent: FakeAgent, tmp_path: Path) -> None:
    agent.stream("POST /v1/pull", [fakes.resolved()] * 400, pause_s=0.05)
    began = time.monotonic()
    code, _, err = command(
        tmp_path, "pull", "llama", "--agent", agent.address, "--timeout", "300ms"
    )
    assert code == 9
    assert "again to resume" in err
    assert time.monotonic() - began < 15  # of the twenty that the agent would have taken


def named(name: str) -> dict[str, Any]:
    """The part of a model's row that `ls -q` reads."""
    return {"ref": f"{name}:x", "namespace": "", "name": name, "tags": ["x"]}


def test_a_reader_that_goes_away_is_no_error(agent: FakeAgent, tmp_path: Path) -> None:
    agent.document("GET /v1/models", {"models": [named(f"m{i}") for i in range(50_000)]})
    process = start(tmp_path, "ls", "-q", "--agent", agent.address)
    assert process.stdout
    assert process.stdout.readline() == "m0:x\n"
    process.stdout.close()
    process.stdout = None
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


def test_a_pull_goes_on_without_its_reader(agent: FakeAgent, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    agent.stream("POST /v1/pull", [*[fakes.progress(1)] * 20, fakes.done(tmp_path)])
    process = start(
        tmp_path, "pull", "--json", "-q", "llama", "--agent", agent.address, stdout=writer
    )
    os.close(writer)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize("words", [("--help",), ("pull", "--help"), ("--version",), ()])
def test_help_whose_reader_has_gone_is_no_error(words: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start(tmp_path, *words, stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0


def test_a_stdout_that_is_full_is_said_in_one_line(agent: FakeAgent, tmp_path: Path) -> None:
    agent.document("GET /v1/models", {"models": []})
    for flags in ([], ["--json"]):
        with Path("/dev/full").open("wb") as full:
            process = start(tmp_path, "ls", *flags, "--agent", agent.address, stdout=full)
            error = process.communicate(timeout=60)[1]
        assert error == "p2pcache: error: can't write to stdout: No space left on device\n"
        assert process.returncode == 5


@pytest.mark.parametrize("words", [("--help",), ("pull", "--help"), ("--version",)])
def test_help_on_a_full_stdout_is_no_bug(words: tuple[str, ...], tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = start(tmp_path, *words, stdout=full)
        error = process.communicate(timeout=60)[1]
    assert error == "p2pcache: error: can't write to stdout: No space left on device\n"
    assert process.returncode == 5


def test_a_working_directory_that_was_deleted_is_no_bug(agent: FakeAgent, tmp_path: Path) -> None:
    (tmp_path / "library/llama" / f"@{fakes.HEX}").mkdir(parents=True)
    agent.stream("POST /v1/pull", [fakes.progress(1), fakes.done(tmp_path)])
    gone = tmp_path / "gone"
    gone.mkdir()
    pull = f"{sys.executable} -m p2pcache pull llama --to out --agent {agent.address}"
    command = f"cd {gone} && rmdir {gone} && exec {pull}"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "p2pcache: error: the working directory was deleted; "
    )


def test_a_stderr_that_is_full_changes_nothing(agent: FakeAgent, tmp_path: Path) -> None:
    folder = tmp_path / "library/llama" / f"@{fakes.HEX}"
    folder.mkdir(parents=True)
    agent.stream("POST /v1/pull", [fakes.progress(1), fakes.done(tmp_path)])
    for args, code in ((("pull", "llama"), 0), (("pull", "a/b/c"), 2)):
        with Path("/dev/full").open("wb") as full:
            process = start(tmp_path, *args, "--agent", agent.address, stderr=full)
            out = process.communicate(timeout=60)[0]
        assert process.returncode == code
        assert bool(out) == (code == 0)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(agent: FakeAgent, tmp_path: Path, closed: str) -> None:
    (tmp_path / "library/llama" / f"@{fakes.HEX}").mkdir(parents=True)
    agent.stream("POST /v1/pull", [fakes.progress(1), fakes.done(tmp_path)])
    line = f'exec "$@" {closed}'
    process = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, "pull", "llama", "--agent", agent.address],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr


def test_a_message_of_the_agent_cannot_drive_the_terminal(agent: FakeAgent, tmp_path: Path) -> None:
    message = "so\x1b[2J it is"
    agent.stream("POST /v1/pull", [{"event": "error", "code": 3, "message": message}])
    assert command(tmp_path, "pull", "llama", "--agent", agent.address) == (
        3,
        "",
        "p2pcache: error: so?[2J it is\n",
    )


def test_a_port_of_something_else_is_no_agent(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_greet, args=(server,))
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        code, _, err = command(tmp_path, "pull", "llama", "--agent", address)
        thread.join()
    assert code == 8
    assert "no agent" in err
    assert "\x00" not in err


def _greet(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"\x00\x01binary greeting\xff\n")


def test_help_is_quick_and_imports_little(tmp_path: Path) -> None:
    assert imported(tmp_path, "--help").isdisjoint({*SLOW, "http", "msgspec"})


def test_the_version_is_told_without_the_daemons_world(tmp_path: Path) -> None:
    """It reads the versions of packages without importing them."""
    slow = {"aiohttp", "asyncio", "uvloop", "botocore", "rich", "psutil", "prometheus_client"}
    assert imported(tmp_path, "version").isdisjoint(slow)


def test_a_warm_pull_imports_little(agent: FakeAgent, tmp_path: Path) -> None:
    (tmp_path / "library/llama" / f"@{fakes.HEX}").mkdir(parents=True)
    agent.stream("POST /v1/pull", [fakes.resolved(), fakes.done(tmp_path)])
    assert imported(tmp_path, "pull", "llama", "--agent", agent.address).isdisjoint(SLOW)


@pytest.mark.parametrize(
    ("args", "limit_s"), [(["--help"], 0.3), (["version"], 0.3), (["pull", "--help"], 0.3)]
)
def test_the_speed_budget(tmp_path: Path, args: list[str], limit_s: float) -> None:
    def once() -> float:
        before = os.times()
        assert command(tmp_path, *args)[0] == 0
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])  # CPU time of children: other work runs beside us

    assert min(once() for _ in range(5)) < limit_s


def imported(tmp_path: Path, *args: str) -> set[str]:
    report = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *args],
        env=environment(tmp_path), capture_output=True, text=True, timeout=60, check=True,
    ).stderr  # fmt: skip
    return {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in report.splitlines()
        if "|" in line
    }


@pytest.mark.slow
def test_a_storage_that_does_not_answer_does_not_hold_up_the_time_limit(tmp_path: Path) -> None:
    """It took as long as the storage's retries: half a minute."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    env = {
        "PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y", "AWS_REGION": "z", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "p2pcache.cli.main", "pull", "a", "--origin", "s3://bucket", "--timeout", "1"],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    assert time.monotonic() - began < 25
