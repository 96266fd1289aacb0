"""Real agents that are killed while they fetch, and after they have, what they are ordered to keep."""

import json
import random
import shutil
import time
from pathlib import Path

from loadtest.kit.daemons import wait_until
from loadtest.kit.models import check_tree, total_bytes
from p2pcache.core.protocol.keep_orders import KeepOrder
from p2pcache.io.notes.kept_orders import FILE, KeptOrders
from tests.functional.node import MakeCluster, push

SIZE = 8 << 20


def test_kill_9_loses_no_order_and_few_bytes(make_cluster: MakeCluster, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "weights.bin").write_bytes(random.Random(1).randbytes(SIZE))
    rate = ("--origin-bytes-per-s", str(SIZE // 6), "--flush-interval-s", "0.2")
    cluster = make_cluster(agents=1, tracker=False, agent_flags=rate)
    push(cluster, source)
    (agent,) = cluster.agents
    digest = agent.client.model("m:v1")["digest"]
    agent.kill()
    ordered = KeepOrder("library", "m", "v1", digest, ((4, 12), (16, 28)))  # of 32 runs
    KeptOrders(agent.cache_dir / FILE).replace([ordered], ())
    wanted = 20 * SIZE // 32

    def done() -> int:
        return sum(model["bytes_done"] for model in agent.client.models())

    agent.start()
    wait_until(lambda: done() > wanted // 3, 20)
    time.sleep(0.5)
    agent.kill()
    agent.start()
    assert wanted // 4 < done() < wanted, (
        "it began again where it was, or had all before it was killed"
    )
    wait_until(lambda: done() == wanted, 20)
    (model,) = agent.client.models()
    assert (model["ref"], model["kept"]) == ("m:v1", "part")
    verified = list(agent.client.verify("m:v1"))[-1]
    assert verified["chunks_bad"] == 0
    assert agent.client.status()["bytes"]["origin"] < wanted
    assert cluster.run("rm", "m:v1", code=10).stderr
    cluster.run("prune", "--all", "--yes")
    assert done() == wanted


def test_a_pool_in_parts_outlives_a_holder_s_crash_and_storage(
    make_cluster: MakeCluster, model: Path, tmp_path: Path
) -> None:
    cluster = make_cluster(agents=3)
    push(cluster, model)
    size = total_bytes(model)
    cluster.run("keep", "m:v1", "--copies", "1")

    def parts() -> list[int]:
        return [sum(one["bytes_done"] for one in agent.client.models()) for agent in cluster.agents]

    wait_until(lambda: sum(parts()) == size and all(parts()), 20)
    before = parts()
    assert sum(int(a.client.status()["bytes"]["origin"]) for a in cluster.agents) == size
    digest = cluster.agents[0].client.models()[0]["digest"]
    cluster.agents[1].kill()
    cluster.agents[1].start()
    wait_until(cluster.agents[1].ready, 20)
    reader = cluster.add_agent("--role", "client")
    reader.start()
    wait_until(reader.ready, 20)
    shutil.rmtree(cluster.origin.removeprefix("file://"))
    done = list(reader.client.pull(f"m:v1@blake3:{digest}"))[-1]
    assert (done["bytes_peers"], done["bytes_origin"]) == (size, 0)
    check_tree(reader.tree(str(done["path"])), model)
    assert parts()[:3] == before, "a crash moves nothing"
    located = json.loads(cluster.run("locate", f"m:v1@blake3:{digest}", "--json").stdout)["nodes"]
    assert [node["kept"] for node in located] == ["", "part", "part", "part"]
