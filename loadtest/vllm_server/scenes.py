"""Scenes of a server's start: where its weights come from, and what it says when they don't."""

import shutil
import subprocess
import threading
from pathlib import Path

from loadtest.kit.cluster import Agent, free_ports
from loadtest.kit.daemons import wait_until
from loadtest.vllm_server.ends import VENV, Server, engine_environ
from loadtest.vllm_server.stage import COMMAND_S, REF, Figures, Stage, brought, said, tail_of

KILL_AT = 0.3  # of the model's bytes


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
    said(ours, f"{target} is complete: vLLM reads it itself")
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
    said(again, "is complete: vLLM reads it itself")
    return {**found, "fetched": round(brought(agent) / stage.bytes, 3), "line": tail_of(line)}


def hub_door(stage: Stage) -> Figures:
    """`vllm serve org/name` without our plugin: its hub client asks the agent's hub door, and then nobody."""
    (port,) = free_ports(1)
    agent = stage.cluster.add_agent("--hf-listen", f"127.0.0.1:{port}")
    agent.start()
    wait_until(agent.ready, COMMAND_S)
    door, home = f"http://127.0.0.1:{port}", str(stage.root / "hf-home")
    environ = {"HF_ENDPOINT": door, "HF_HOME": home, "HF_HUB_OFFLINE": "0"}
    name, _, tag = REF.partition(":")
    flags = ["--revision", tag, "--load-format", "auto"]
    found = stage.check(Server("hub door", stage.cluster, name, flags, environ=environ))
    fetched = brought(agent) / stage.bytes
    assert fetched > 0.99, f"the door's agent brought {fetched:.2f} of the model"
    agent.stop()
    offline = environ | {"HF_HUB_OFFLINE": "1"}
    again = stage.check(Server("offline", stage.cluster, name, flags, environ=offline))
    return {**found, "fetched": round(fetched, 3), "offline_ready_s": again["ready_s"]}


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
    return {**found, "killed_at": at[0], "line": tail_of(said(server, f"loaded {REF}@blake3:"))}


def no_agent(stage: Stage) -> Figures:
    """Nobody listens at the socket, and no origin is named: an error that says what to do."""
    server = stage.streaming("no agent", stage.cluster.agents[0])
    nobody = {"P2PCACHE_AGENT": f"unix://{stage.cluster.root}/nobody.sock"}
    lost = Server(
        "nobody", stage.cluster, server.model, server.flags, environ=nobody
    )  # fmt: skip
    lost.fails("p2pcache.errors.Unreachable", "nobody.sock")
    return {"line": tail_of(said(lost, "p2pcache.errors.Unreachable"))}


def wrong_setting(stage: Stage) -> Figures:
    """A key that doesn't exist ends the server, with its name."""
    flags = ["--load-format", "p2pcache", "--model-loader-extra-config", '{"reff": "team/tiny:v1"}']
    server = Server("wrong", stage.cluster, stage.small(stage.cluster.agents[0]), flags)
    server.fails("p2pcache.errors.UsageError", "unknown reff")
    return {"line": tail_of(said(server, "p2pcache.errors.UsageError"))}


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
        "first_init_s": first["init_s"], "line": tail_of(restored),
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
