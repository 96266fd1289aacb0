"""What the functional tests share: a pull in the background, a push without a daemon."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Agent, Cluster
from p2pcache.errors import P2PCacheError

MakeCluster = Callable[..., Cluster]


class Pull(threading.Thread):
    """A pull that runs beside the test."""

    def __init__(self, agent: Agent, ref: str) -> None:
        super().__init__(daemon=True)
        self.agent, self.ref = agent, ref
        self.events: list[dict[str, Any]] = []
        self.error: P2PCacheError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.events.extend(self.agent.client.pull(self.ref))
        except P2PCacheError as error:
            self.error = error

    def wait(self, limit_s: float = 40) -> dict[str, Any]:
        """The `done` event; raises what the pull ended with."""
        self.join(limit_s)
        assert not self.is_alive(), "the pull doesn't end"
        if self.error is not None:
            raise self.error
        return self.events[-1]


def bytes_done(agent: Agent) -> int:
    """Of the one pull that runs; 0: none runs."""
    pulls = agent.client.pulls()
    return int(pulls[0]["bytes_done"]) if pulls else 0


def push(cluster: Cluster, model: Path, ref: str = "m:v1") -> None:
    """Straight to the origin, as a build job does it."""
    cluster.run("push", str(model), ref, "--origin", cluster.origin, agent=None)
