"""Scenes of a server that is asked for more while it serves: new weights, adapters, a draft beside it."""

import json
import statistics
import time
from pathlib import Path

from loadtest.vllm_server.ends import VENV, Server
from loadtest.vllm_server.models import expected, make_adapter, make_llama, make_next_step
from loadtest.vllm_server.stage import COMMAND_S, REF, Figures, Stage, brought, said, tail_of

NEXT, ADAPTER, DRAFT, LARGE = (
    "team/tiny:step-2",
    "team/support:v1",
    "team/draft:v1",
    "team/large:v1",
)
ONE_COMMAND = [str(VENV / "bin" / "p2pcache"), "run", "--"]
# A directory without its weights says which version it is, and not by which tag it came.
LOADED = f"loaded {REF.partition(':')[0]}:latest@blake3:"
DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}  # the server's /collective_rpc
RELOADS = 21  # one takes a second, and those of a busy machine differ by half


def one_command(stage: Stage) -> Figures:
    """`p2pcache run -- vllm serve REF` streams the model; then new weights come by their ref, while it serves."""
    agent = stage.node()
    server = Server(
        "one command", stage.cluster, REF, by=ONE_COMMAND, served="team/tiny",
        environ={"P2PCACHE_AGENT": agent.url, **DEVELOPER},
    )  # fmt: skip
    step = make_next_step(stage.root / "step-2", stage.model)
    with server.serving():
        stage.compare(server)
        line = said(server, LOADED)
        before = brought(agent)
        stage.cluster.run("push", str(step), NEXT, "--quiet", limit_s=COMMAND_S)
        server.reload(NEXT)
        told, wanted = server.answers(), expected(step)
        assert told == wanted, f"after the reload: {told}, transformers says {wanted}"
        assert wanted != stage.tokens, "the new weights change nothing"
    moved = (brought(agent) - before) / stage.bytes
    assert moved < 0.5, f"the reload brought {moved:.2f} of the model; a fifth has changed"
    return {"line": tail_of(line), "moved_by_reload": round(moved, 3),
            "reload_line": tail_of(said(server, f"loaded {NEXT}@blake3:"))}  # fmt: skip


def adapters(stage: Stage) -> Figures:
    """A request's model names an adapter, which comes on demand; other namespaces aren't looked in."""
    agent = stage.node()
    folder = make_adapter(stage.root / "adapter", stage.model, REF.partition(":")[0])
    for ref in (ADAPTER, ADAPTER.replace("team/", "other/")):
        stage.cluster.run("push", str(folder), ref, "--quiet", limit_s=COMMAND_S)
    server = Server(
        "adapters", stage.cluster, REF, ["--enable-lora", "--max-lora-rank", "8"], by=ONE_COMMAND,
        served="team/tiny", environ={
            "P2PCACHE_AGENT": agent.url, "P2PCACHE_LORA_NAMESPACES": "team",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        },
    )  # fmt: skip
    with server.serving():
        stage.compare(server)
        began = time.monotonic()
        told, wanted = server.answers(ADAPTER), expected(stage.model, folder)
        took_s = time.monotonic() - began
        assert told == wanted, f"with the adapter: {told}, transformers says {wanted}"
        assert wanted != stage.tokens, "the adapter changes nothing"
        stage.compare(server)
        assert "404" in server.refusal(ADAPTER.replace("team/", "other/"))
    return {"first_answer_s": round(took_s, 1)}


def draft(stage: Stage) -> Figures:
    """A draft model of its own ref beside a streamed one."""
    agent = stage.node()
    small = make_llama(stage.root / "draft", layers=1)
    stage.cluster.run("push", str(small), DRAFT, "--quiet", limit_s=COMMAND_S)
    wish = {"method": "draft_model", "model": f"p2pcache://{DRAFT}", "num_speculative_tokens": 2}
    server = Server(
        "draft", stage.cluster, REF, ["--speculative-config", json.dumps(wish)], by=ONE_COMMAND,
        served="team/tiny", environ={"P2PCACHE_AGENT": agent.url},
    )  # fmt: skip
    with server.serving():
        stage.compare(server)
    return {"line": tail_of(said(server, LOADED))}


def reload_times(stage: Stage) -> Figures:
    """Two tensor-parallel workers load a complete model again and again, with our load format and without, in turns."""
    agent = stage.cluster.agents[0]
    model = make_llama(stage.root / "large", hidden=1024, layers=12)
    stage.cluster.run("push", str(model), LARGE, "--quiet", limit_s=COMMAND_S)
    folder = stage.run(agent, "pull", LARGE, "--quiet").splitlines()[0]
    bind = {"VLLM_CPU_OMP_THREADS_BIND": "0|1", "P2PCACHE_AGENT": agent.url, **DEVELOPER}
    servers = {
        load_format: Server(
            f"reload {load_format}", stage.cluster, folder,
            ["--load-format", load_format, "--tensor-parallel-size", "2"], environ=bind,
        )
        for load_format in ("auto", "p2pcache")
    }  # fmt: skip
    with servers["auto"].serving(), servers["p2pcache"].serving():
        times: dict[str, list[float]] = {name: [] for name in servers}
        for turn in range(RELOADS):
            for name in sorted(servers, reverse=bool(turn % 2)):
                times[name].append(servers[name].reload(folder))
    ratios = [ours / theirs for ours, theirs in zip(times["p2pcache"], times["auto"], strict=True)]
    size = sum(path.stat().st_size for path in Path(folder).iterdir())
    return {
        "model_mb": round(size / 1e6), "of_default": round(statistics.median(ratios), 3),
        "of_default_each": [round(ratio, 2) for ratio in ratios],
        "default_s": round(statistics.median(times["auto"]), 2),
        "first_load": [tail_of(said(server, "Loading weights took")) for server in servers.values()],
    }  # fmt: skip
