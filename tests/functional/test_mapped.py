"""A process that holds a model mapped keeps its bytes, whatever happens to the model: no SIGBUS, no other bytes."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import p2pcache
from loadtest.kit.cluster import Cluster, last_event
from p2pcache.errors import Conflict, IntegrityError
from p2pcache.ids import Ref
from p2pcache.io.models.store import Store
from tests.functional.node import MakeCluster, push

HOLDER = """
import hashlib, sys
import p2pcache

tensors = p2pcache.load(sys.argv[1], framework="raw", agent=sys.argv[2])
assert any(".safetensors" in line for line in open("/proc/self/maps")), "not mapped"
for _ in sys.stdin:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].data)
    print(found.hexdigest(), flush=True)
"""


class Holder:
    """The process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def digest(self) -> str:
        """Of all tensors, read through the mappings now."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = self._process.stdout.readline().strip()
        assert found, f"the holder ended with {self._process.wait()}"
        return found


@contextmanager
def holding(cluster: Cluster, ref: str) -> Iterator[Holder]:
    command = [sys.executable, "-c", HOLDER, ref, cluster.agents[0].url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Holder(process)
        finally:
            process.kill()


def digest_of(model: Path) -> str:
    found = hashlib.sha256()
    tensors = p2pcache.load(model, framework="raw")
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].data)
    return found.hexdigest()


def test_a_mapped_model_through_removal_repair_and_other_pulls(
    make_cluster: MakeCluster, model: Path, other_model: Path
) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, model, "team/m:v1")
    push(cluster, other_model, "team/other:v1")
    tree = Path(cluster.run("pull", "team/m:v1").stdout.strip())
    true = digest_of(model)
    with holding(cluster, "team/m:v1") as holder:
        assert holder.digest() == true

        # Nobody removes what a process on this machine uses.
        cluster.run("rm", "team/m:v1", code=Conflict.exit_code)
        cluster.run("evict", "team/m:v1", code=Conflict.exit_code)
        cluster.run("prune", "--all", "--yes")
        assert tree.is_dir()
        assert holder.digest() == true

        # A damaged blob is mended in a new file.
        shard = sorted(tree.glob("*.safetensors"))[1]
        inode = shard.stat().st_ino
        with shard.open("r+b") as file:
            file.seek(-1000, 2)
            file.write(b"rot")
        held = holder.digest()
        assert held != true
        cluster.run("verify", "team/m:v1", code=IntegrityError.exit_code)
        assert holder.digest() == held
        done = last_event(cluster.run("pull", "team/m:v1", "--json").stdout)
        assert done["bytes_origin"] < shard.stat().st_size / 2, "one chunk comes again"
        assert shard.stat().st_ino != inode
        assert digest_of(tree) == true
        assert holder.digest() == held
    with holding(cluster, "team/m:v1") as holder:
        assert holder.digest() == true

        # Removed as by an agent that can't see the process, then pulled again, and another model, too.
        agent = cluster.agents[0]
        agent.stop()
        store = Store.open(agent.cache_dir, min_free_bytes=0)
        store.remove_model(tree.name[1:])
        store.close()
        assert not tree.exists()
        assert holder.digest() == true
        agent.start()
        cluster.run("pull", "team/other:v1")
        cluster.run("pull", "team/m:v1")
        assert holder.digest() == true == digest_of(tree)
    # The last holder is gone: now it may be removed.
    cluster.run("rm", str(Ref.parse("team/m:v1")))
