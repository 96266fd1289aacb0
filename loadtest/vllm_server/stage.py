"""What all scenes share: real agents, the model in the storage, and what transformers says."""

import json
import time
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Agent, Cluster, run_command
from loadtest.kit.daemons import wait_until
from loadtest.vllm_server.ends import Server
from loadtest.vllm_server.models import expected, make_llama

REF = "team/tiny:v1"
LINK = "10mbit"  # the model takes 20 s: long enough to stand in the middle of it
COMMAND_S = 300.0
Figures = dict[str, Any]


class Stage:
    """The cluster, the model and the tokens that all scenes share. Agent 0 has the model."""

    def __init__(self, root: Path) -> None:
        """Make the model and describe a tracker and one agent; nothing runs yet."""
        self.root = root
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
        with server.serving():
            ready_s = time.monotonic() - began
            self.compare(server)
        return {"ready_s": round(ready_s, 1)}

    def compare(self, server: Server) -> None:
        """A server's tokens must be those of transformers."""
        told = server.answers()
        assert told == self.tokens, f"{server.name}: {told}, transformers says {self.tokens}"


def said(server: Server, part: str) -> str:
    """The first line of its log with these words; they must be there."""
    lines = [line for line in server.log().splitlines() if part in line]
    assert lines, f"{server.name} didn't say {part!r}; {server.tail()}"
    return lines[0]


def tail_of(line: str) -> str:
    """A log line without what vLLM puts in front of it."""
    return line.rpartition("] ")[2].strip()


def brought(agent: Agent) -> int:
    """Bytes that came to an agent from peers and storage since it started."""
    told = agent.client.status()["bytes"]
    return int(told["peer"]) + int(told["origin"])
