"""Daemons that are killed, stopped and restarted; disks that fill; storage that lies."""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from loadtest.kit.cluster import Agent, Cluster, last_event, write_key
from loadtest.kit.daemons import StartError, wait_until
from loadtest.kit.models import check_tree, corrupt_file, make_model, total_bytes
from p2pcache.errors import P2PCacheError
from p2pcache.io.blobs import bitmap
from tests.functional.node import MakeCluster, Pull, bytes_done, push

SLOW = ("--origin-bytes-per-s", "6MiB")  # a pull of the 24 MiB model then takes four seconds
SLACK = 1 << 20  # a chunk or two whose proof was not on disk yet, and the files beside the shards


def kept(agent: Agent) -> int:
    """Bytes that a killed agent would find again: whole blobs, and what bitmaps say."""
    size = sum(path.stat().st_size for path in (agent.cache_dir / "blobs").iterdir())
    for path in (agent.cache_dir / "partial").glob("*.have"):
        with contextlib.suppress(FileNotFoundError):  # the blob is whole now
            found = bitmap.decode(path.read_bytes())
            size += found.done_bytes if found else 0
    return size


def test_a_killed_agent_resumes(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=1, agent_flags=(*SLOW, "--flush-interval-s", "0.3"))
    push(cluster, model)
    agent, size = cluster.agents[0], total_bytes(model)
    pull = Pull(agent, "m:v1")
    wait_until(lambda: kept(agent) > size // 3, 60)
    before = kept(agent)
    agent.kill()
    with pytest.raises(P2PCacheError):
        pull.wait()
    agent.start()
    done = Pull(agent, "m:v1").wait()
    assert done["bytes_origin"] <= size - before + SLACK
    check_tree(agent.tree(str(done["path"])), model)


def test_sigterm_in_the_middle_is_orderly_and_bounded(
    make_cluster: MakeCluster, model: Path
) -> None:
    cluster = make_cluster(agents=1, agent_flags=SLOW)
    push(cluster, model)
    agent, size = cluster.agents[0], total_bytes(model)
    pull = Pull(agent, "m:v1")
    wait_until(lambda: bytes_done(agent) > size // 3, 60)
    before = bytes_done(agent)
    start = time.monotonic()
    assert agent.stop() in (0, 143)
    assert time.monotonic() - start < 60
    with pytest.raises(P2PCacheError):
        pull.wait()
    assert not agent.socket.exists()
    agent.start()
    done = Pull(agent, "m:v1").wait()
    # An orderly end keeps everything that was proved.
    assert done["bytes_origin"] <= size - before
    check_tree(agent.tree(str(done["path"])), model)


def test_the_tracker_is_killed_and_started_again(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=2, agent_flags=("--origin-bytes-per-s", "3MiB"))
    push(cluster, model)
    size = total_bytes(model)
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents]
    wait_until(lambda: bytes_done(cluster.agents[0]) > size // 3, 60)
    cluster.tracker.kill()
    cluster.tracker.start()
    done = [pull.wait() for pull in pulls]
    for agent, event in zip(cluster.agents, done, strict=True):
        check_tree(agent.tree(str(event["path"])), model)
    assert sum(int(str(d["bytes_origin"])) for d in done) <= size * 1.05


def test_without_a_tracker_the_owners_read(make_cluster: MakeCluster, model: Path) -> None:
    """The bound without a tracker: one copy leaves storage, only later."""
    cluster = make_cluster(agents=2, agent_flags=("--origin-bytes-per-s", "3MiB"))
    push(cluster, model)
    size = total_bytes(model)
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents]
    wait_until(lambda: bytes_done(cluster.agents[0]) > size // 8, 60)
    cluster.tracker.kill()
    done = [pull.wait(60) for pull in pulls]
    for agent, event in zip(cluster.agents, done, strict=True):
        check_tree(agent.tree(str(event["path"])), model)
    assert sum(int(str(d["bytes_origin"])) for d in done) <= size * 1.05


@pytest.mark.slow
def test_a_model_that_no_tracker_ever_heard_of_leaves_storage_once(
    make_cluster: MakeCluster, model: Path, other_model: Path
) -> None:
    """Tracker gone before the pull, storage healthy: the last known members share the reading."""
    cluster = make_cluster(agents=2)
    push(cluster, other_model, "other:v1")
    for pull in [Pull(agent, "other:v1") for agent in cluster.agents]:
        pull.wait()
    push(cluster, model)
    cluster.tracker.kill()
    done = [pull.wait(80) for pull in [Pull(agent, "m:v1") for agent in cluster.agents]]
    for agent, event in zip(cluster.agents, done, strict=True):
        check_tree(agent.tree(str(event["path"])), model)
    assert sum(int(str(d["bytes_origin"])) for d in done) <= total_bytes(model) * 1.05


def test_corrupt_storage_is_exit_6_everywhere_with_bounded_reads(
    make_cluster: MakeCluster, model: Path, origin_dir: Path
) -> None:
    cluster = make_cluster(agents=2)
    push(cluster, model)
    blob = max((origin_dir / "p2pcache/v1/blobs").iterdir(), key=lambda p: p.stat().st_size)
    blob.chmod(0o644)
    corrupt_file(blob, blob.stat().st_size // 2)
    pulls = [Pull(agent, "m:v1") for agent in cluster.agents]
    for pull in pulls:
        with pytest.raises(P2PCacheError) as caught:
            pull.wait()
        assert caught.value.exit_code == 6
    result = cluster.run("pull", "m:v1", code=6)
    assert result.stderr.count("\n") >= 1
    for agent in cluster.agents:  # nothing half-made may look like a model
        assert not list((agent.cache_dir / "models").glob("*/*/@*"))


def test_a_disk_that_is_too_small_is_exit_5_before_the_first_byte(
    make_cluster: MakeCluster, model: Path
) -> None:
    cluster = make_cluster(agents=1, agent_flags=("--min-free-bytes", "1000TB"))
    push(cluster, model)
    result = cluster.run("pull", "m:v1", code=5)
    assert "prune" in result.stderr
    assert not list((cluster.agents[0].cache_dir / "blobs").iterdir())


def test_a_wrong_key_is_no_member(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, model)
    stranger = cluster.add_agent()
    key = write_key(cluster.root / "other.key")
    stranger.command[stranger.command.index("--cluster-key-file") + 1] = str(key)
    stranger.start()
    stranger.wait_log("key")
    result = cluster.run("pull", "m:v1", agent=1, code=None, limit_s=30)
    assert result.returncode in (4, 8)
    assert len(cluster.agents[0].client.nodes()) == 1


def test_one_cache_belongs_to_one_agent(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(agents=1)
    second = cluster.add_agent()
    second.command[second.command.index("--cache-dir") + 1] = str(cluster.agents[0].cache_dir)
    with pytest.raises(StartError, match="agent"):
        second.start()


def test_without_a_key_only_loopback(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(agents=1)
    bold = cluster.add_agent()
    place = bold.command.index("--cluster-key-file")
    del bold.command[place : place + 2]
    bold.command[bold.command.index("--listen") + 1] = "0.0.0.0:0"
    with pytest.raises(StartError, match="key"):
        bold.start()


def test_restart_keeps_the_cache(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, model)
    agent = cluster.agents[0]
    cluster.run("pull", "m:v1")
    agent.stop()
    agent.start()
    done = last_event(cluster.run("pull", "m:v1", "--json").stdout)
    assert done["bytes_origin"] == done["bytes_peers"] == 0
    check_tree(Path(done["path"]), model)


def test_a_tag_moves_and_generations_count(
    make_cluster: MakeCluster, model: Path, other_model: Path
) -> None:
    cluster = make_cluster(agents=2)
    push(cluster, model, "team/m:v1")
    old = Path(cluster.run("pull", "team/m:v1").stdout.strip())
    moved = last_event(cluster.run("push", str(other_model), "team/m:v1", "--json").stdout)
    assert moved["generation"] == 2
    for agent in (0, 1):
        new = Path(cluster.run("pull", "team/m:v1", agent=agent).stdout.strip())
        check_tree(new, other_model)
    check_tree(old, model)  # immutable: whoever opened it goes on reading it
    tag = origin_tag(cluster)
    record = json.loads(tag.read_text())
    record["generation"] = 1
    tag.write_text(json.dumps(record))
    time.sleep(2.5)  # the tracker's memory of a tag
    result = cluster.run("pull", "team/m:v1", code=None)
    assert result.returncode != 0
    assert "generation" in result.stderr


def origin_tag(cluster: Cluster) -> Path:
    root = Path(cluster.origin.removeprefix("file://"))
    return root / "p2pcache/v1/tags/team/m/v1"


def test_rm_and_prune_leave_alone_what_is_in_use(
    make_cluster: MakeCluster, model: Path, other_model: Path
) -> None:
    cluster = make_cluster(agents=1, agent_flags=("--origin-bytes-per-s", "3MiB"))
    push(cluster, model, "big:v1")
    push(cluster, other_model, "small:v1")
    agent = cluster.agents[0]
    cluster.run("pull", "small:v1")
    pull = Pull(agent, "big:v1")
    wait_until(lambda: bytes_done(agent) > 0, 60)
    cluster.run("rm", "big:v1", code=10)
    cluster.run("prune")
    assert "small" in cluster.run("ls").stdout
    done = pull.wait()
    check_tree(agent.tree(str(done["path"])), model)
    cluster.run("rm", "small:v1")
    assert "small" not in cluster.run("ls").stdout
    cluster.run("pull", "small:v1")  # and it can be had again
    cluster.run("prune", "--all", "--yes")
    assert not list((agent.cache_dir / "models").glob("*/*/@*"))
    usage = shutil.disk_usage(agent.cache_dir)
    assert usage.free


def test_verify_finds_and_drops_rot(make_cluster: MakeCluster, other_model: Path) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, other_model)
    tree = Path(cluster.run("pull", "m:v1").stdout.strip())
    shard = max(tree.glob("*.safetensors"))
    shard.chmod(0o644)
    corrupt_file(shard, 700_000)
    assert cluster.run("verify", "m:v1", code=6).stderr
    again = Path(cluster.run("pull", "m:v1").stdout.strip())
    check_tree(again, other_model)
    cluster.run("verify", "m:v1")


def test_a_pull_never_hands_out_a_file_that_was_changed(
    make_cluster: MakeCluster, other_model: Path
) -> None:
    cluster = make_cluster(agents=1)
    push(cluster, other_model)
    tree = Path(cluster.run("pull", "m:v1").stdout.strip())
    shard = max(tree.glob("*.safetensors"))
    shard.chmod(0o644)
    corrupt_file(shard, 700_000)
    check_tree(Path(cluster.run("pull", "m:v1").stdout.strip()), other_model)


def test_timeout_is_exit_9_and_the_next_pull_resumes(
    make_cluster: MakeCluster, model: Path
) -> None:
    cluster = make_cluster(agents=1, agent_flags=SLOW)
    push(cluster, model)
    cluster.run("pull", "m:v1", "--timeout", "1s", code=9)
    done = last_event(cluster.run("pull", "m:v1", "--json").stdout)
    check_tree(Path(done["path"]), model)


def test_a_pull_is_interrupted_with_130(make_cluster: MakeCluster, model: Path) -> None:
    import subprocess

    from loadtest.kit.daemons import P2PCACHE

    cluster = make_cluster(agents=1, agent_flags=SLOW)
    push(cluster, model)
    environ = cluster.environ | {"P2PCACHE_AGENT": cluster.agents[0].url}
    process = subprocess.Popen(
        [*P2PCACHE, "pull", "m:v1"], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_until(lambda: bytes_done(cluster.agents[0]) > 0, 60)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == b""


def test_ten_thousand_small_files(make_cluster: MakeCluster, tmp_path: Path) -> None:
    source = tmp_path / "small"
    make_model(source, 1 << 20, shards=1, seed=3)
    for number in range(10_000):
        folder = source / f"d{number % 100}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(f"file {number}\n" * (number % 7))
    cluster = make_cluster(agents=2)
    push(cluster, source)
    start = time.monotonic()
    done = cluster.pull_everywhere("m:v1")
    assert time.monotonic() - start < 60
    for event in done:
        check_tree(Path(event["path"]), source)


def test_memory_stays_flat(make_cluster: MakeCluster, model: Path) -> None:
    cluster = make_cluster(agents=2)
    push(cluster, model)
    cluster.pull_everywhere("m:v1")
    for agent in cluster.agents:
        assert agent.anon_bytes() < 300 << 20


def test_nothing_is_left_in_the_environment(make_cluster: MakeCluster) -> None:
    """The harness itself: what a cluster started and made is gone after it."""
    cluster = make_cluster(agents=1)
    pids = [cluster.tracker.pid, cluster.agents[0].pid]
    cluster.stop()
    assert not cluster.root.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
