"""The naive rival: every node reads the whole model from the origin itself, on the same links."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loadtest.models import check_tree, total_bytes
from loadtest.netns import Host
from loadtest.storm.arena import Arena
from loadtest.storm.plan import Links, bound_s

REF = "storm/naive:v1"
LIMIT_FACTOR = 3  # of N x F / B_o


def run_naive(arena: Arena, links: Links) -> dict[str, Any]:
    """Pull with our own client, but with no tracker and so no peers; a model of `naive_bytes`."""
    plan = arena.plan
    source = arena.push(plan.naive_bytes, REF)
    size = total_bytes(source)
    before = arena.origin.sent_bytes()
    limit_s = 30 + LIMIT_FACTOR * plan.nodes * size / links.origin
    start = time.monotonic()

    def pull(host: Host) -> tuple[float, str]:
        cache = arena.work / f"naive-{host.port}"
        tree = arena.command(
            host, "pull", REF, "--quiet", "--cache-dir", str(cache), limit_s=limit_s
        )
        return time.monotonic() - start, tree.strip()  # fmt: skip

    with ThreadPoolExecutor(plan.nodes) as pool:
        results = list(pool.map(pull, arena.node_hosts))
    for _, tree in results:
        check_tree(arena.work / tree, source)
    t_last = max(seconds for seconds, _ in results)
    t_lb = bound_s(plan, links, size, plan.nodes)
    return {
        "size_bytes": size,
        "t_last": round(t_last, 3),
        "t_lb": round(t_lb, 3),
        "eta": round(t_lb / t_last, 4),
        "alpha": round((arena.origin.sent_bytes() - before) / size, 4),
    }
