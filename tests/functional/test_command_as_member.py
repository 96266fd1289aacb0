"""A pull that runs its own agent and joins the swarm of a tracker beyond loopback."""

import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from loadtest.kit.cluster import Cluster, last_event, run_command
from loadtest.kit.models import total_bytes
from p2pcache.core.protocol.address import join
from tests.functional.node import MakeCluster, push

NO_NETWORK = ["unshare", "--map-root-user", "--net"]


def _address(family: socket.AddressFamily) -> str:
    """An address of this machine on which a tracker isn't local; skips the test where there is none."""
    for interface in psutil.net_if_addrs().values():
        for one in interface:
            of_this_link = "%" in one.address or one.address.startswith(("127.", "169.254."))
            if one.family == family and not of_this_link and one.address != "::1":
                return str(one.address)
    pytest.skip("this machine has no address of this family but loopback")


def _member(cluster: Cluster, cache: Path) -> tuple[list[str], dict[str, str]]:
    """A pull as a member: the command's arguments and its environment."""
    arguments = [
        "pull",
        "m:v1",
        "--json",
        "--tracker",
        cluster.tracker_url,
        "--cache-dir",
        str(cache),
    ]
    more = {"P2PCACHE_CLUSTER_KEY_FILE": str(cluster.key_file), "P2PCACHE_MIN_FREE_BYTES": "0"}
    return arguments, cluster.environ | more


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_command_joins_a_swarm_beyond_loopback(
    make_cluster: MakeCluster, model: Path, tmp_path: Path, family: socket.AddressFamily
) -> None:
    """It ended with exit 2; the tests only joined trackers on loopback."""
    host = _address(family)
    cluster = make_cluster(agents=1, host=host)
    push(cluster, model)
    cluster.run("pull", "m:v1")
    arguments, environ = _member(cluster, tmp_path / "own")
    done = run_command(*arguments, environ=environ | {"P2PCACHE_DEBUG": "1"})
    assert f"peers at {join(host, 1)[:-1]}" in done.stderr, "of the tracker's family"
    last = last_event(done.stdout)
    assert last["event"] == "done"
    assert (last["bytes_peers"], last["bytes_origin"]) == (total_bytes(model), 0)


def test_a_command_without_a_network_pulls_from_storage(
    make_cluster: MakeCluster, model: Path, tmp_path: Path
) -> None:
    if subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode:
        pytest.skip("this user can't make network namespaces")
    cluster = make_cluster(agents=0, host=_address(socket.AF_INET))
    push(cluster, model)
    arguments, environ = _member(cluster, tmp_path / "own")
    origin = ["--origin", cluster.origin]
    done = run_command(*arguments, *origin, environ=environ, prefix=NO_NETWORK)
    assert last_event(done.stdout)["bytes_origin"] == total_bytes(model)
    assert "network" in done.stderr
    assert "working alone" in done.stderr
    failed = run_command(*arguments, environ=environ, prefix=NO_NETWORK, code=8)
    assert "network" in failed.stderr
