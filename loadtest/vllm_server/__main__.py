"""A real `vllm serve` in front of real agents, on this machine's CPU: what docs/engines/vllm.md promises.

A tiny Llama is pushed to a directory. Each scene starts vLLM as a user does and compares the tokens
that it answers with those of transformers. `make vllm-server` installs vLLM first (.ci/install_vllm.py).

    python -m loadtest.vllm_server --only streamed --json FILE

Exit code: 0 every scene went well, 1 one didn't, 2 vLLM isn't installed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Agent, Cluster, run_command
from loadtest.kit.daemons import StartError, exit_on_signals, wait_until
from loadtest.vllm_server.ends import VENV, Server, engine_environ, expected, make_llama

REF = "team/tiny:v1"
LINK = "10mbit"  # the model takes 20 s: long enough to stand in the middle of it
KILL_AT = 0.3  # of the model's bytes
COMMAND_S = 300.0
Figures = dict[str, Any]


class Stage:
    """The cluster, the model and the tokens that all scenes share. Agent 0 has the model."""

    def __init__(self, root: Path) -> None:
        """Make the model and describe a tracker and one agent; nothing runs yet."""
        self.model = make_llama(root / "model")
        self.bytes = sum(path.stat().st_size for path in self.model.iterdir())
        self.tokens = expected(self.model)
        (root / "origin").mkdir()
        self.cluster = Cluster(
            f"file://{root / 'origin'}", agents=1, folder=root,
            agent_flags=["--compile-cache-namespaces", "team"],
            environ={"P2PCACHE_COMPILE_CACHE_NAMESPACES": "team"},
        )  # fmt: skip

    def push(self) -> None:
        """Bring the model into the storage, by agent 0, which keeps it."""
        self.cluster.run("push", str(self.model), REF, "--quiet", limit_s=COMMAND_S)

    def node(self) -> Agent:
        """One more agent, behind a thin link, that has nothing yet."""
        agent = self.cluster.add_agent(
            "--download-bytes-per-s", LINK, "--origin-bytes-per-s", LINK
        )  # fmt: skip
        agent.start()
        wait_until(agent.ready, COMMAND_S)
        return agent

    def run(self, agent: Agent, *args: str) -> str:
        """Run `p2pcache` at an agent; what it printed, on stdout and stderr."""
        environ = self.cluster.environ | {"P2PCACHE_AGENT": agent.url}
        done = run_command(*args, environ=environ, limit_s=COMMAND_S)
        return (done.stdout + done.stderr).strip()

    def small(self, agent: Agent) -> str:
        """The model's directory without weights, as the page says it."""
        told = self.run(agent, "pull", REF, "--exclude", "*.safetensors", "--quiet")
        return told.splitlines()[0]

    def streaming(self, name: str, agent: Agent, *flags: str, **more: Any) -> Server:
        """A server whose weights come from an agent while they arrive."""
        environ = {"P2PCACHE_AGENT": agent.url, **more.pop("environ", {})}
        extra = json.dumps({"ref": REF})
        ours = ["--load-format", "p2pcache", "--model-loader-extra-config", extra]
        return Server(
            name, self.cluster, self.small(agent), [*ours, *flags], environ=environ, **more
        )

    def check(self, server: Server) -> Figures:
        """Serve, compare tokens, end; seconds until it was healthy."""
        began = time.monotonic()
        try:
            server.serve()
            ready_s = time.monotonic() - began
            told = server.answers()
            assert told == self.tokens, f"{server.name}: {told}, transformers says {self.tokens}"
        finally:
            server.stop()
        return {"ready_s": round(ready_s, 1)}


def said(server: Server, part: str) -> str:
    """The first line of its log with these words; they must be there."""
    lines = [line for line in server.log().splitlines() if part in line]
    assert lines, f"{server.name} didn't say {part!r}; {server.tail()}"
    return lines[0]


def brought(agent: Agent) -> int:
    """Bytes that came to an agent from peers and storage since it started."""
    told = agent.client.status()["bytes"]
    return int(told["peer"]) + int(told["origin"])


def directory(stage: Stage) -> Figures:
    """An init container brings the model; vLLM knows nothing of p2pcache, then reads with our loader."""
    agent, target = stage.cluster.agents[0], stage.cluster.root / "mnt" / "models"
    subprocess.run(
        [VENV / "bin" / "p2pcache-init", f"p2pcache://{REF}", target], check=True,
        capture_output=True, env=engine_environ(stage.cluster) | {"P2PCACHE_AGENT": agent.url},
    )  # fmt: skip
    plain = stage.check(Server("auto", stage.cluster, str(target), ["--load-format", "auto"]))
    ours = Server("directory", stage.cluster, str(target), ["--load-format", "p2pcache"])
    found = stage.check(ours)
    assert "from disk 100%" in said(ours, f"loaded {target}")
    return {**found, "auto_ready_s": plain["ready_s"]}


def streamed(stage: Stage) -> Figures:
    """The weights come over a thin link while vLLM loads; next time the node has them, and its tag."""
    agent = stage.node()
    server = stage.streaming("streamed", agent)
    before = brought(agent)
    found = stage.check(server)
    assert before < 0.1 * stage.bytes, "the weights were there before vLLM asked for them"
    line = said(server, f"loaded {REF}@blake3:")
    assert "from peers" in line, line
    assert "team/tiny" in stage.run(agent, "ls"), "the node doesn't know the model by its tag"
    again = stage.streaming("again", agent)
    stage.check(again)
    assert "from disk 100%" in said(again, "tensors, ")
    return {**found, "fetched": round(brought(agent) / stage.bytes, 3), "line": _tail(line)}


def two_ranks(stage: Stage) -> Figures:
    """Two tensor-parallel workers share one fetch."""
    agent = stage.node()
    bind = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # vLLM finds one NUMA node, and wants one for each
    server = stage.streaming("two ranks", agent, "--tensor-parallel-size", "2", environ=bind)
    found = stage.check(server)
    lines = [line for line in server.log().splitlines() if f"loaded {REF}@blake3:" in line]
    assert len(lines) == 2, lines
    fetched = brought(agent) / stage.bytes
    assert fetched < 1.05, f"two ranks brought the model {fetched:.2f} times"
    return {**found, "fetched": round(fetched, 3)}


def agent_killed(stage: Stage) -> Figures:
    """The agent is killed in the middle of the load and stays away: the rest comes from the origin."""
    agent = stage.node()
    server = stage.streaming(
        "killed", agent, environ={"P2PCACHE_ORIGIN": stage.cluster.origin}
    )  # fmt: skip
    at: list[float] = []

    def kill() -> None:
        wait_until(lambda: brought(agent) > KILL_AT * stage.bytes, COMMAND_S * 3)
        at.append(round(brought(agent) / stage.bytes, 2))
        agent.kill()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = stage.check(server)
    assert at, "the agent wasn't killed"
    assert at[0] < 1, "the model was complete when the agent was killed"
    return {**found, "killed_at": at[0], "line": _tail(said(server, f"loaded {REF}@blake3:"))}


def no_agent(stage: Stage) -> Figures:
    """Nobody listens at the socket, and no origin is named: an error that says what to do."""
    server = stage.streaming("no agent", stage.cluster.agents[0])
    nobody = {"P2PCACHE_AGENT": f"unix://{stage.cluster.root}/nobody.sock"}
    lost = Server(
        "nobody", stage.cluster, server.model, server.flags, environ=nobody
    )  # fmt: skip
    lost.fails("p2pcache.errors.Unreachable", "nobody.sock")
    return {"line": _tail(said(lost, "p2pcache.errors.Unreachable"))}


def wrong_setting(stage: Stage) -> Figures:
    """A key that doesn't exist ends the server, with its name."""
    flags = ["--load-format", "p2pcache", "--model-loader-extra-config", '{"reff": "team/tiny:v1"}']
    server = Server("wrong", stage.cluster, stage.small(stage.cluster.agents[0]), flags)
    server.fails("p2pcache.errors.UsageError", "unknown reff")
    return {"line": _tail(said(server, "p2pcache.errors.UsageError"))}


def compiled(stage: Stage) -> Figures:
    """What one server compiled another one uses: the cache goes through storage and another agent."""
    cache, target = stage.cluster.root / "vllm-cache", stage.cluster.root / "same-path"
    stage.run(stage.cluster.agents[0], "pull", REF, "--to", str(target), "--quiet")
    shutil.rmtree(cache, ignore_errors=True)
    first = _compiling(stage, "compiling", target)
    how = [REF, "--engine", "vllm", "--dir", str(cache)]
    saved = _in_engine(stage, stage.cluster.agents[0], "save", *how)
    assert "saved team/tiny-cc:" in saved, saved
    shutil.rmtree(cache)
    restored = _in_engine(stage, stage.node(), "restore", *how)
    assert "restored team/tiny-cc:" in restored, restored
    second = _compiling(stage, "compiled", target)
    assert first["libraries"] > 0
    assert second["libraries"] == 0, f"{second['libraries']} of {first['libraries']} made again"
    return {
        **second, "first_ready_s": first["ready_s"], "first_libraries": first["libraries"],
        "first_init_s": first["init_s"], "line": _tail(restored),
    }  # fmt: skip


def _compiling(stage: Stage, name: str, target: Path) -> Figures:
    """Serve with torch.compile; how many libraries a compiler made for it, and seconds of the engine's start."""
    calls, tools = stage.cluster.root / "calls", stage.cluster.root / "tools"
    tools.mkdir(exist_ok=True)
    compiler = tools / "g++"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which("g++")} "$@"\n')
    compiler.chmod(0o755)
    calls.write_text("")
    inner = engine_environ(stage.cluster)
    server = Server(
        name, stage.cluster, str(target), ["--load-format", "p2pcache"], eager=False,
        environ={"PATH": f"{tools}:{inner['PATH']}", **inductor(inner["VLLM_CACHE_ROOT"])},
    )  # fmt: skip
    found = stage.check(server)
    init_s = said(server, "init engine").rpartition("took ")[2].split()[0]
    made = sum("-shared" in line for line in calls.read_text().splitlines())
    return {**found, "init_s": float(init_s), "libraries": made}


def inductor(root: str) -> dict[str, str]:
    """For a CPU: vLLM 0.32.0 can't read back the AOT artifact that it stores there, Inductor's cache it can."""
    return {"VLLM_USE_AOT_COMPILE": "0", "TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor"}


def _in_engine(stage: Stage, agent: Agent, *args: str) -> str:
    """`p2pcache compile-cache` where vLLM is installed, as its key needs it."""
    done = subprocess.run(
        [VENV / "bin" / "p2pcache", "compile-cache", *args], text=True, capture_output=True, check=False,
        env=engine_environ(stage.cluster) | {"P2PCACHE_AGENT": agent.url}, timeout=COMMAND_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.strip()


def _tail(line: str) -> str:
    """A log line without what vLLM puts in front of it."""
    return line.rpartition("] ")[2].strip()


SCENES: tuple[Callable[[Stage], Figures], ...] = (
    directory, streamed, two_ranks, agent_killed, no_agent, wrong_setting, compiled,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Play the scenes; 0: all went well."""
    names = [scene.__name__.replace("_", "-") for scene in SCENES]
    parser = argparse.ArgumentParser(prog="python -m loadtest.vllm_server", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(argv)
    if not (VENV / "bin" / "vllm").exists():
        print("vllm-server: no vLLM here: `make vllm-server` installs it", file=sys.stderr)
        return 2
    exit_on_signals()
    root = Path(tempfile.mkdtemp(prefix="p2pv-"))
    try:
        stage = Stage(root)
        with stage.cluster:
            stage.push()
            figures = {name: _play(name, stage) for name in names if name in options.only}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any("failed" in each for each in figures.values()))


def _play(name: str, stage: Stage) -> Figures:
    scene = SCENES[[each.__name__ for each in SCENES].index(name.replace("-", "_"))]
    began = time.monotonic()
    try:
        figures = scene(stage)
    except (AssertionError, StartError, TimeoutError) as error:
        figures = {"failed": str(error)}
    verdict = "FAILED" if "failed" in figures else "ok"
    print(f"{name}: {verdict} after {time.monotonic() - began:.0f} s", flush=True)
    for key, value in figures.items():
        print(f"    {key}: {value}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
