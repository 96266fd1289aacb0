"""Rights with real daemons: tokens over TCP by the command line, secrets nowhere, root on a read-only mount."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from loadtest.kit.cluster import Agent, Cluster, free_ports, run_command
from p2pcache.errors import P2PCacheError
from p2pcache.io.http.client import AgentClient
from tests.functional.node import MakeCluster, push

AWS_ID, AWS_SECRET = "AKIAEXAMPLEEXAMPLE12", "s3cr3tS3CR3Ts3cr3tS3CR3Ts3cr3tS3CR3Ts3cr"
FLOOD = 2_500  # 10,000 take half a minute and show the same
AWS_TOKEN = "sessionSESSIONsessionSESSIONsession"


@pytest.fixture
def cluster(make_cluster: MakeCluster) -> Cluster:
    return make_cluster(agents=1)


def add_tcp_agent(cluster: Cluster, *flags: str) -> tuple[Agent, str, Path]:
    """An agent with the API on TCP and a token key of its own; its URL and the key's file."""
    key = cluster.root / "token.key"
    key.write_text("tokenkeyTOKENKEYtokenkeyTOKENKEYtokenkey\n")
    key.chmod(0o600)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    more = ("--api-listen", address, "--token-key-file", str(key), "--log-level", "debug", *flags)
    agent = cluster.add_agent(*more)
    agent.start()
    return agent, f"http://{address}", key


def make_token(cluster: Cluster, key: Path, *flags: str) -> Path:
    made = cluster.run("token", "create", *flags, "--key-file", str(key), agent=None)
    file = cluster.root / f"token-{time.monotonic_ns()}"
    file.write_text(made.stdout)
    file.chmod(0o600)
    return file


def test_the_command_line_with_tokens(cluster: Cluster, other_model: Path, tmp_path: Path) -> None:
    agent, url, key = add_tcp_agent(cluster)
    push(cluster, other_model, "team/m:v1")
    push(cluster, other_model, "secret/m:v1")
    there = {"P2PCACHE_AGENT": url}
    reader = {
        **there,
        "P2PCACHE_TOKEN_FILE": str(
            make_token(cluster, key, "--scope", "pull", "--namespace", "team")
        ),
    }
    writer = {
        **there,
        "P2PCACHE_TOKEN_FILE": str(
            make_token(cluster, key, "--scope", "push", "--namespace", "team")
        ),
    }
    cluster.run("pull", "team/m:v1", agent=None, environ=reader)
    cluster.run("ls", agent=None, environ=reader)
    for words, environ in (
        (("pull", "team/m:v1"), there),
        (("pull", "secret/m:v1"), reader),
        (("push", str(other_model), "team/mine:v1"), reader),
        (("push", str(other_model), "secret/mine:v1"), writer),
        (("rm", "team/m:v1"), writer),
        (("prune",), writer),
        (("nodes",), writer),
    ):
        refused = cluster.run(*words, agent=None, environ=environ, code=4)
        assert refused.stderr.count("\n") == 1, refused.stderr
        assert refused.stdout == ""
    # A second copy of the model under another name: every byte is sent and proved again.
    again = cluster.run("push", str(other_model), "team/mine:v1", agent=None, environ=writer)
    assert again.stdout.startswith("team/mine:v1@blake3:")
    boss = make_token(cluster, key, "--scope", "admin", "--namespace", "*", "--name", "boss")
    cluster.run("rm", "team/m:v1", "--token-file", str(boss), agent=None, environ=there)
    audit = [line for line in agent.log().splitlines() if " audit: " in line]
    assert any(
        "action=rm" in line and "token=boss" in line and "result=ok" in line for line in audit
    )
    assert sum("result=refused" in line for line in audit) == 7
    brief = make_token(cluster, key, "--scope", "pull", "--namespace", "team", "--expires", "1s")
    time.sleep(1.1)
    late = cluster.run("ls", "--token-file", str(brief), agent=None, environ=there, code=4)
    assert "expired" in late.stderr


def test_secrets_are_nowhere(cluster: Cluster, other_model: Path, tmp_path: Path) -> None:
    """In no log, command line, page, metric or answer; also where all goes wrong."""
    closed = free_ports(1)[0]
    storage = {
        "AWS_ACCESS_KEY_ID": AWS_ID, "AWS_SECRET_ACCESS_KEY": AWS_SECRET, "AWS_SESSION_TOKEN": AWS_TOKEN,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed}", "AWS_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1", "P2PCACHE_DEBUG": "1",
    }  # fmt: skip
    cluster.environ |= storage
    agent, url, key = add_tcp_agent(cluster, "--origin", "s3://bucket/prefix")
    token = make_token(cluster, key, "--scope", "admin", "--namespace", "*")
    text = token.read_text().strip()
    secrets = {
        "cluster key": cluster.key_file.read_text().strip(), "token key": key.read_text().strip(),
        "token": text, "the token's signature": text.rpartition(".")[2],
        "storage id": AWS_ID, "storage secret": AWS_SECRET, "session token": AWS_TOKEN,
    }  # fmt: skip
    wide = {**storage, "P2PCACHE_AGENT": url, "P2PCACHE_TOKEN_FILE": str(token)}
    told = []
    with watching_command_lines() as lines:
        for words in (
            ("status", "--json"), ("ls",), ("pull", "team/m:v1", "--timeout", "1"), ("nodes",), ("doctor", "--json"),
            ("config", "show", "--json"), ("history", "--json"), ("token", "show", str(token)),
            ("pull", "team/m:v1", "--origin", "s3://bucket/prefix", "--timeout", "1"),
        ):  # fmt: skip
            environ = dict(wide)
            if "--origin" in words or words[0] == "doctor":
                environ.pop("P2PCACHE_AGENT")
            done = cluster.run(*words, agent=None, environ=environ, code=None)
            told.append((" ".join(words), done.stdout + done.stderr))
    client = AgentClient(url, token=f"{text[:-2]}xx")
    with pytest.raises(P2PCacheError) as caught:
        client.status()
    told.append(("a wrong token", str(caught.value)))
    for path in ("/metrics", "/readyz", "/healthz", "/v1/status", "/v1/history"):
        told += [(where + path, get(where + path, text)) for where in (url, cluster.tracker_url)]
    told.append(("the tracker's page", get(cluster.tracker_url + "/", "")))
    told += [(daemon.name, daemon.log()) for daemon in (agent, cluster.tracker, *cluster.agents)]
    told.append(("command lines", "\n".join(lines)))
    for where, what in told:
        for name, secret in secrets.items():
            assert secret not in what, f"the {name} is in {where}"
    assert "pull" in "\n".join(lines)  # the watch saw something
    assert "audit: " in agent.log()


def get(url: str, token: str) -> str:
    """The body of any answer."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with contextlib.suppress(OSError):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read())
        except urllib.error.HTTPError as error:
            return f"{error.headers}{error.read()!r}"
    return ""


@contextlib.contextmanager
def watching_command_lines():  # type: ignore[no-untyped-def]
    """Every process's command line, looked at again and again."""
    import threading

    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


# -- root with what container engines give it by default ----------------------------------------

DOCKER_CAPS = (
    "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw,"
    "sys_chroot,mknod,audit_write,setfcap"
)
ENTER = """
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
exec setpriv --bounding-set="-all,$(echo "$3" | sed 's/[^,]*/+&/g')" --inh-caps=-all "$2" -c "$4" "$1"
"""
ATTACK = r"""
import ctypes, errno, fcntl, mmap, os, struct, sys
from pathlib import Path
models = Path(sys.argv[1])
weights = next(p for p in (models / "team/m/v1").resolve().iterdir() if p.stat().st_size > 100_000)
libc = ctypes.CDLL(None, use_errno=True)
reading = os.open(weights, os.O_RDONLY)
outside = "/tmp/p2pcache-test-%d" % os.getpid()
def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
def handle():
    folder = os.open(weights.parent, os.O_RDONLY)
    name = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    called(libc.name_to_handle_at(folder, weights.name.encode(), name, ctypes.byref(mount), 0))
    root = os.open("/", os.O_RDONLY)
    called(libc.open_by_handle_at(root, name, os.O_RDWR))
attempts = {
    "write": lambda: os.open(weights, os.O_RDWR),
    "write by /proc": lambda: os.open(f"/proc/self/fd/{reading}", os.O_RDWR),
    "write in place": lambda: os.pwrite(reading, b"x", 0),
    "map": lambda: mmap.mmap(reading, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE),
    "truncate": lambda: os.truncate(weights, 0),
    "chmod": lambda: os.chmod(weights, 0o666),
    "fchmod": lambda: os.fchmod(reading, 0o666),
    "chown": lambda: os.chown(weights, 1, 1),
    "utime": lambda: os.utime(weights, (1, 1)),
    "xattr": lambda: os.setxattr(weights, "user.x", b"1"),
    "flags": lambda: fcntl.ioctl(reading, 0x40086602, struct.pack("l", 0x10)),
    "punch a hole": lambda: called(libc.fallocate(reading, 3, 0, 4096)),
    "unlink": lambda: os.unlink(weights),
    "rename": lambda: os.rename(weights, models / "x"),
    "link inside": lambda: os.link(weights, models / "x"),
    "link outside": lambda: os.link(weights, outside),
    "create": lambda: os.open(models / "x", os.O_CREAT | os.O_WRONLY),
    "mkdir": lambda: os.mkdir(models / "x"),
    "mknod": lambda: os.mknod(models / "x", 0o600),
    "retag": lambda: os.symlink("x", models / "team/m/v2"),
    "remount": lambda: called(libc.mount(b"", bytes(models), b"", 0x20 | 0x1000, None)),
    "mount over": lambda: called(libc.mount(b"x", bytes(models), b"tmpfs", 0, None)),
    "unmount": lambda: called(libc.umount2(bytes(models), 2)),
    "open by handle": handle,
}
allowed = []
for name, attempt in attempts.items():
    try:
        attempt()
        allowed.append(name)
    except (OSError, ValueError):
        pass
print(",".join(allowed) or "nothing")
"""


def _namespaces() -> bool:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return os.geteuid() == 0 and tried.returncode == 0


def state(tree: Path) -> dict[str, tuple[bytes, int, int]]:
    """All that somebody could change about files."""
    return {
        str(p): (p.read_bytes() if p.is_file() else b"", p.stat().st_mode, p.stat().st_mtime_ns)
        for p in tree.rglob("*")
    }


@pytest.mark.skipif(not _namespaces(), reason="needs root and mount namespaces")
def test_root_can_write_through_nothing_that_it_was_given(
    cluster: Cluster, other_model: Path
) -> None:
    push(cluster, other_model, "team/m:v1")
    agent = cluster.agents[0]
    tree = Path(cluster.run("pull", "team/m:v1").stdout.strip())
    before = state(tree)
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", ENTER, "sh", str(agent.cache_dir / "models"), sys.executable,
         DOCKER_CAPS, ATTACK],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "nothing"), done.stderr
    assert state(tree) == before
    cluster.run("verify", "team/m:v1")
    assert {p.name for p in (agent.cache_dir / "models").iterdir()} == {".hf", "team"}


def test_a_flood_of_pulls_leaves_the_agent_on_its_feet(
    make_cluster: MakeCluster, other_model: Path
) -> None:
    """Connections beyond its descriptors hear 503, and operators still get through."""
    cluster = make_cluster(agents=0)
    push(cluster, other_model, "team/m:v1")
    path = cluster.root / "client.sock"
    agent = cluster.add_agent(
        "--client-socket", str(path), "--origin-bytes-per-s", "100KiB", "--shutdown-s", "1"
    )
    agent.start()
    counts = asyncio.run(flood(str(path), FLOOD))
    assert set(counts) <= {"200", "429", "503", "cut"}, counts
    assert counts["200"] > 200
    assert agent.client.status()["node"]
    assert json.loads(
        run_command("ps", "--json", "--agent", agent.url, environ=cluster.environ).stdout
    )
    assert agent.anon_bytes() < 300 << 20
    assert "Too many open files" not in agent.log()


async def flood(path: str, count: int) -> dict[str, int]:
    """So many pulls that wait; how they were answered. They are let go together at the end."""
    counts: dict[str, int] = {}
    writers: list[asyncio.StreamWriter] = []
    body = b'{"ref": "team/m:v1"}'
    request = b"POST /v1/pull HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )

    async def one() -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(path)
        except (BlockingIOError, ConnectionError):
            answer = "cut"
        else:
            try:
                writer.write(request)
                async with asyncio.timeout(30):
                    line = await reader.readline()
                answer = line.split()[1].decode() if line else "cut"
            except ConnectionError:
                answer = "cut"
            if answer == "200":
                writers.append(writer)
            else:
                writer.close()
        counts[answer] = counts.get(answer, 0) + 1

    for _ in range(0, count, 500):
        await asyncio.gather(*(one() for _ in range(500)))
    for writer in writers:
        writer.close()
    return counts
