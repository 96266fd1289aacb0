"""A real vLLM server, started as a user starts it."""

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadtest.kit.cluster import Cluster, free_ports, healthy
from loadtest.kit.daemons import Daemon, wait_until
from loadtest.vllm_server.models import PROMPTS, TOKENS

VENV = Path(__file__).resolve().parents[2] / ".engines" / "vllm-server"  # .ci/install_vllm.py
START_S = 900.0  # vLLM imports itself in three processes; two busy cores need minutes for that
ASK_S = 120.0


class Server(Daemon):
    """`vllm serve`, as a user starts it."""

    def __init__(
        self, name: str, cluster: Cluster, model: str, flags: Sequence[str] = (), *,
        eager: bool = True, environ: dict[str, str] | None = None, by: Sequence[str] = (),
        served: str = "",
    ) -> None:  # fmt: skip
        """Describe it.

        Args:
            name: for messages.
            cluster: where its log and cache are, and whose environment it has.
            model: a directory, or what `by` takes for it.
            flags: more flags of `vllm serve`.
            eager: don't compile, which is quicker to start.
            environ: added to its environment.
            by: what stands before `vllm serve`, such as `p2pcache run --`.
            served: what clients call the model; "": we name it.
        """
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.model, self.flags, self.served = model, list(flags), served or "tiny"
        common = ["--dtype", "float32", "--max-model-len", "128", "--host", "127.0.0.1",
                  "--port", str(port), *([] if served else ["--served-model-name", "tiny"])]  # fmt: skip
        command = [*by, str(VENV / "bin" / "vllm"), "serve", model, *common, *flags]
        super().__init__(
            name, [*command, *(["--enforce-eager"] if eager else [])],
            cluster.root / f"vllm-{name.replace(' ', '-')}.log",
            ready=lambda: healthy(f"{self.url}/health"),
            environ=engine_environ(cluster) | (environ or {}),
        )  # fmt: skip

    def serve(self) -> None:
        """Start it and wait until it is healthy.

        Raises:
            StartError: it ended, or takes too long.
        """
        self.start(wait=False)
        self.wait_ready(START_S)

    def fails(self, *parts: str) -> None:
        """Start it, see it end by itself with a failure, and find these words in what it said."""
        self.start(wait=False)
        wait_until(lambda: not self.alive, START_S)
        assert self.process is not None
        assert self.process.returncode, f"{self.name} ended well; {self.tail()}"
        for part in parts:
            assert part in self.log(), f"{self.name} didn't say {part!r}; {self.tail()}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve for as long as the block runs; it has ended afterwards."""
        try:
            self.serve()
            yield
        finally:
            self.stop()

    def reload(self, weights: str) -> float:
        """Let all workers load other weights; seconds that it took.

        Args:
            weights: a directory, or what its loader takes for one.
        """
        began = time.monotonic()
        self.ask("/collective_rpc", method="reload_weights", kwargs={"weights_path": weights})
        return time.monotonic() - began

    def answers(self, model: str = "") -> list[list[int]]:
        """The tokens that it puts after each prompt.

        Args:
            model: what to ask; "": the model that it serves.
        """
        return [self._answer(prompt, model or self.served) for prompt in PROMPTS]

    def refusal(self, model: str) -> str:
        """What it says to whoever asks for a model that it hasn't."""
        try:
            self.answers(model)
        except AssertionError as error:
            return str(error)
        raise AssertionError(f"{self.name} serves {model}")

    def _answer(self, prompt: str, model: str) -> list[int]:
        told = self.ask(
            "/v1/completions", model=model, prompt=prompt, max_tokens=TOKENS, temperature=0,
            return_token_ids=True,
        )  # fmt: skip
        return [int(token) for token in told["choices"][0]["token_ids"]]

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Post to its API; what it told.

        Raises:
            AssertionError: it refused, with its reason.
        """
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                told: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{self.name}: {error}: {error.read()[:500]!r}") from None
        return told


def engine_environ(cluster: Cluster) -> dict[str, str]:
    """For whatever runs where vLLM is installed: offline, and small."""
    return cluster.environ | {
        "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(cluster.root / "vllm-cache"),
    }  # fmt: skip
