"""The manifests of the one-node walk (docs/kubernetes.md), run: every container in namespaces of its own.

The pods' specs are those of deploy/kubernetes, through `kubectl kustomize`; tests/deploy/kubelet.py
says what is real about it and what isn't.
"""

import copy
import filecmp
import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from loadtest.kit.cluster import healthy
from loadtest.kit.daemons import Daemon, stop_all, wait_until
from loadtest.kit.netns import Fabric, FabricError, Host, in_namespace
from p2pcache.io.http.client import AgentClient
from tests.agent.kit import push
from tests.deploy.kubelet import REPO, Node, Pod, find
from tests.deploy.render import example, kustomize
from tests.loader.loader_kit import Spec, write

pytestmark = [pytest.mark.netns, pytest.mark.functional, pytest.mark.slow]

MIB = 1 << 20
SLOW_BYTES_PER_S = 1_000_000  # of node-2's agent: a pull is long enough to be interrupted 20 times
CRASHES = 20
CLIENTS = 200
MAX_ANON_BYTES = 300 * MIB
CHUNKS_IN_FLIGHT = 16 * 256 * 1024  # leases of a small model that one agent may hold


class OneNode:
    """The running cluster: a tracker, an agent, and a second node whose agent is slow."""

    def __init__(self, fabric: Fabric, tmp_path: Path) -> None:
        self.objects = kustomize("overlays/one-node", tmp_path)
        self.example = [*example("one-node-push.yaml"), *example("one-node-pods.yaml")]
        self.fabric = fabric
        self.node = Node(fabric.work / "n1", "node-1")
        self.node.learn(self.objects)
        self.daemons: list[Daemon] = []
        self.agent_pod: Pod
        self.agent: Daemon

    def start(self) -> None:
        host = self.fabric.add("tracker")
        self.node.hosts["p2pcache-tracker"] = host.address
        self.serve(self.node, "Deployment", "p2pcache-tracker", host)
        self.agent_pod, self.agent = self.agent_on(self.node)

    def agent_on(self, node: Node, **environ: str) -> tuple[Pod, Daemon]:
        host = self.fabric.add(node.name)
        return self.serve(node, "DaemonSet", "p2pcache-agent", host, environ)

    def serve(
        self, node: Node, kind: str, name: str, host: Host, environ: dict[str, str] | None = None
    ) -> tuple[Pod, Daemon]:
        """Start a pod as the kubelet does: init containers, then the container until its startup probe."""
        template = find(self.objects, kind, name)["spec"]["template"]
        pod = node.pod(template, ip=host.address, netns=host.prefix)
        for container in pod.spec.get("initContainers", ()):
            done = pod.run(container)
            assert done.returncode == 0, done.stderr
        (container,) = copy.deepcopy(pod.spec["containers"])
        container["env"] += [{"name": k, "value": v} for k, v in (environ or {}).items()]
        daemon = pod.daemon(container, ready=lambda: probe(container, "startupProbe", host))
        self.daemons.append(daemon)
        daemon.start()
        wait_until(lambda: probe(container, "readinessProbe", host), 60)
        assert probe(container, "livenessProbe", host)
        return pod, daemon

    def operator(self, pod: Pod) -> AgentClient:
        """What `kubectl exec` into the agent's pod reaches."""
        return AgentClient(f"unix://{pod.volume('run') / 'agent.sock'}")

    def push(self, ref: str, size: str) -> tuple[Path, int]:
        """Run the example's Job for another model; the model's directory and size."""
        pod = self.node.pod(find(self.example, "Job", "push-demo")["spec"]["template"])
        (container,) = copy.deepcopy(pod.spec["containers"])
        script = container["args"][0].replace("64M", size).replace("team/demo:v1", ref)
        script = script.replace("{}", f'{{"of": "{ref}"}}')  # no two models share a byte
        assert (size in script, ref in script) == (True, True)
        container["args"] = [script]
        done = pod.run(container)
        assert done.returncode == 0, done.stderr
        folder = pod.volume("scratch") / "demo"
        return folder, sum(p.stat().st_size for p in folder.iterdir())

    def client(self, node: Node | None = None) -> Pod:
        """A pod of the example's Deployment: other user, no link, client socket and models only."""
        template = find(self.example, "Deployment", "demo")["spec"]["template"]
        return (node or self.node).pod(template)


def probe(container: dict[str, Any], name: str, host: Host) -> bool:
    get = container[name]["httpGet"]
    (port,) = [p["containerPort"] for p in container["ports"] if p["name"] == get["port"]]
    return in_namespace(host, lambda: healthy(f"http://{host.address}:{port}{get['path']}"))


def pulling(ref: str, *flags: str, pod: Pod) -> dict[str, Any]:
    """The example's init container, for a model."""
    (container,) = copy.deepcopy(pod.spec["initContainers"])
    return {**container, "args": ["pull", ref, *flags]}


def shell(script: str, *, pod: Pod) -> dict[str, Any]:
    """The example's server container, with another script."""
    (container,) = copy.deepcopy(pod.spec["containers"])
    return {**container, "command": ["sh", "-euc"], "args": [script]}


def origin_bytes(client: AgentClient) -> int:
    return int(client.status()["bytes"]["origin"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    try:
        fabric = Fabric()
    except FabricError as error:
        pytest.skip(str(error))
    with fabric:
        made = OneNode(fabric, tmp_path_factory.mktemp("manifests"))
        try:
            made.start()
            yield made
        finally:
            stop_all(made.daemons[::-1])


def test_the_walk_two_pods_of_a_node_cost_one_fetch(cluster: OneNode) -> None:
    model, size = cluster.push("team/demo:v1", "64M")
    operator = cluster.operator(cluster.agent_pod)
    before = origin_bytes(operator)
    pods = [cluster.client() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda pod: pod.run(pod.spec["initContainers"][0]), pods))
    for run in runs:
        assert run.returncode == 0, run.stderr
        # The one thing on stdout is the path as this pod sees it, not as the agent does.
        assert re.fullmatch(r"/models/team/demo/@[0-9a-f]{64}\n", run.stdout), run.stdout
    assert origin_bytes(operator) - before == size
    listed = pods[0].run(shell("ls -l /models/team/demo/v1/", pod=pods[0]))
    assert listed.returncode == 0, listed.stderr
    assert "weights.bin" in listed.stdout
    seen = cluster.node.host_path("/var/lib/p2pcache/models/team/demo/v1")
    assert filecmp.cmpfiles(model, seen, ["weights.bin", "config.json"], shallow=False)[1:] == (
        [],
        [],
    )
    (again,) = [pods[1].run(pods[1].spec["initContainers"][0])]
    assert again.stdout == runs[0].stdout
    where = cluster.agent_pod.run(
        {**cluster.agent_pod.spec["containers"][0], "args": ["locate", "team/demo:v1", "--json"]}
    )
    assert [n["name"] for n in json.loads(where.stdout)["nodes"]] == ["node-1"], where.stderr


SEES_ONLY = """
test "$(ls /run/p2pcache)" = client
test "$(ls /run/p2pcache/client)" = agent.sock
test ! -e /var/lib/p2pcache
test ! -e /etc/p2pcache
test ! -e /run/p2pcache/agent.sock
test ! -e /var/run/secrets
test -z "$(env | grep -i -e key -e token -e aws || true)"
test "$(ls /sys/class/net 2>/dev/null || true)" = ""
weights=$(readlink -f /models/team/demo/v1)/weights.bin
cat "$weights" > /dev/null
for attempt in "touch /models/new" "rm -f $weights" "mv $weights /models/x" "chmod u+w $weights" \\
    "ln -s x /models/link" "truncate -s 0 $weights" "mkdir /models/team/y" \\
    "rm /run/p2pcache/client/agent.sock" "touch /run/p2pcache/client/new" \\
    "mount -o remount,rw /models" "mount -t tmpfs x /models"; do
    if sh -c "$attempt" 2>/dev/null; then echo "allowed: $attempt"; exit 1; fi
done
if p2pcache pull team/demo:v1 --agent unix:///run/p2pcache/agent.sock 2>/dev/null; then exit 1; fi
if p2pcache rm team/demo:v1 2>/dev/null; then echo "rm is allowed"; exit 1; fi
if p2pcache prune --yes 2>/dev/null; then echo "prune is allowed"; exit 1; fi
echo all well
"""


@pytest.mark.parametrize("uid", [65534, 0])
def test_a_pod_reads_its_models_and_can_do_nothing_else(cluster: OneNode, uid: int) -> None:
    """Also as root in the container, who has no capabilities, as the example's spec says."""
    pod = cluster.client()
    assert pod.run(pod.spec["initContainers"][0]).returncode == 0
    inside = shell(SEES_ONLY, pod=pod)
    inside["env"] = pod.spec["initContainers"][0]["env"]
    done = pod.run(inside, uid=uid)
    assert (done.returncode, done.stdout) == (0, "all well\n"), done.stdout + done.stderr
    assert cluster.operator(cluster.agent_pod).model("team/demo:v1")["complete"]


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="the probe runs curl, which isn't installed"
)
def test_the_startup_probe_of_the_example(cluster: OneNode) -> None:
    (server,) = find(example("inference.yaml"), "Deployment", "llama")["spec"]["template"]["spec"][
        "containers"
    ]
    words = server["startupProbe"]["exec"]["command"]
    pod = cluster.client()
    for ref, works in (("team/demo:v1", True), ("team/llama:v3", False)):
        command = [word.replace("team/llama:v3", ref) for word in words]
        done = pod.run({**pod.spec["containers"][0], "command": command, "args": []})
        assert (done.returncode == 0) == works, done.stderr


def test_kserve_fills_the_pods_own_volume(cluster: OneNode) -> None:
    storage = find(example("kserve.yaml"), "ClusterStorageContainer", "p2pcache")["spec"][
        "container"
    ]
    pod = cluster.client()
    volume = pod.add_volume("kserve-provision-location")
    container = {
        **storage,
        "securityContext": {**storage["securityContext"], "runAsUser": 65534},
        "args": ["p2pcache://team/demo:v1", "/mnt/models"],
        "volumeMounts": [
            *storage["volumeMounts"],
            {"name": "kserve-provision-location", "mountPath": "/mnt/models"},
        ],
    }
    for _ in range(2):  # a restarted pod runs it again
        done = pod.run(container)
        assert (done.returncode, done.stdout) == (0, "/mnt/models\n"), done.stderr
    assert sorted(p.name for p in volume.iterdir()) == ["config.json", "weights.bin"]
    assert {p.stat().st_uid for p in volume.iterdir()} == {65534}
    assert (
        pod.run({**container, "args": ["p2pcache://team/none:v1", "/mnt/models"]}).returncode == 3
    )


def test_the_streaming_example(cluster: OneNode, tmp_path: Path) -> None:
    """Its init container, and in its server's place what vLLM's plugin does with the same arguments."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"of": "streaming"}')
    wanted = write(
        tmp_path / "model" / "model.safetensors", [Spec(f"w{i}", "U8", (MIB,)) for i in range(8)]
    )
    push(cluster.node.host_path("/var/lib/p2pcache-origin"), tmp_path / "model", "team/llama:v9")
    template = find(example("vllm-streaming.yaml"), "Deployment", "llama-streaming")["spec"]
    text = json.dumps(template["template"]).replace("team/llama:v3", "team/llama:v9")
    pod = cluster.node.pod(json.loads(text.replace('{"sizeLimit": "1Gi"}', "{}")))
    (init,), (server,) = pod.spec["initContainers"], copy.deepcopy(pod.spec["containers"])
    for _ in range(2):  # a restarted pod runs it again
        done = pod.run(init)
        assert (done.returncode, done.stdout) == (0, "/model/llama\n"), done.stderr
    assert [p.name for p in (pod.volume("model") / "llama").iterdir()] == ["config.json"]
    (extra,) = [a.partition("=")[2] for a in server["args"] if "extra-config" in a]
    server |= {
        "command": ["python", "-c", _STREAMING], "args": [server["command"][-1], extra],
        "securityContext": {**server["securityContext"], "readOnlyRootFilesystem": True},
    }  # fmt: skip
    done = pod.run(server)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == {name: blake3(data).hexdigest() for name, data in wanted.items()}


_STREAMING = """
import json, sys
from blake3 import blake3
from p2pcache.loader.integrations.vllm import split_extra_config
from p2pcache.loader.integrations.weights import find_weights, stream_weights
settings, _ = split_extra_config(json.loads(sys.argv[2]))
where = find_weights(sys.argv[1], settings)
weights = stream_weights(where, settings)
print(json.dumps({name: blake3(t.numpy().tobytes()).hexdigest() for name, t in weights}))
"""


def test_200_clients_at_once_cost_one_fetch(cluster: OneNode) -> None:
    _, size = cluster.push("team/many:v1", "48M")
    operator = cluster.operator(cluster.agent_pod)
    before = origin_bytes(operator)
    pod = cluster.client()
    script = REPO / "tests" / "deploy" / "many_clients.py"
    address = pod.spec["initContainers"][0]["env"][0]["value"]
    crowd = pod.run({
        **pod.spec["containers"][0], "args": [],
        "command": ["env", f"PYTHONPATH={REPO}", "python", str(script), address, "team/many:v1", str(CLIENTS)],
    })  # fmt: skip
    assert crowd.returncode == 0, crowd.stderr
    got = json.loads(crowd.stdout)
    assert [each for each in got if each["event"] != "done"] == []
    assert len(got) == CLIENTS
    assert len({each["path"] for each in got}) == 1
    assert origin_bytes(operator) - before == size
    assert cluster.agent.anon_bytes() <= MAX_ANON_BYTES


def test_a_crash_loop_ends_in_a_complete_model_read_once(cluster: OneNode) -> None:
    model, size = cluster.push("team/crash:v1", "16M")
    node = Node(cluster.fabric.work / "n2", "node-2")
    node.learn(cluster.objects)
    node.hosts |= cluster.node.hosts
    shared = node.host_path("/var/lib/p2pcache-origin")  # what a storage is: the same for all nodes
    shared.parent.mkdir(parents=True)
    shared.symlink_to(cluster.node.host_path("/var/lib/p2pcache-origin"))
    agent_pod, _ = cluster.agent_on(node, P2PCACHE_ORIGIN_BYTES_PER_S=str(SLOW_BYTES_PER_S))
    operator, dice = cluster.operator(agent_pod), random.Random(1)
    pod = cluster.client(node)
    for crash in range(CRASHES):
        if crash > 2 and operator.pulls()[0]["bytes_done"] > size // 2:
            break  # on a busy machine each takes long
        client = pod.start(pulling("team/crash:v1", "--json", pod=pod))
        assert client.stdout is not None
        first = json.loads(client.stdout.readline())
        assert first["event"] == "resolved", first
        time.sleep(dice.uniform(0, 0.15))
        assert client.poll() is None, "the model came before the crashes were over"
        client.kill()
        client.wait(30)
        client.stdout.close()
    assert 0 < operator.pulls()[0]["bytes_done"] < size
    done = pod.run(pulling("team/crash:v1", pod=pod))
    assert done.returncode == 0, done.stderr
    seen = node.host_path("/var/lib/p2pcache/models") / Path(done.stdout.strip()).relative_to(
        "/models"
    )
    assert filecmp.cmpfiles(model, seen, ["weights.bin", "config.json"], shallow=False)[1:] == (
        [],
        [],
    )
    assert size <= origin_bytes(operator) <= size + CHUNKS_IN_FLIGHT
    # The other node gets it from this one: the storage is read no more.
    first_node = cluster.operator(cluster.agent_pod)
    before = origin_bytes(first_node)
    other = cluster.client()
    assert other.run(pulling("team/crash:v1", pod=other)).returncode == 0
    assert origin_bytes(first_node) == before


def test_the_key_is_nobody_elses(cluster: OneNode) -> None:
    key = cluster.agent_pod.volume("cluster-key") / "key"
    assert key.read_bytes() == cluster.node.secrets[key_secret(cluster)]["key"]
    assert (key.stat().st_mode & 0o777, key.stat().st_uid, key.stat().st_gid) == (0o440, 0, 10001)
    secret = key.read_text().strip()
    for daemon in cluster.daemons:
        assert secret not in daemon.log()
        assert secret not in Path(f"/proc/{daemon.pid}/cmdline").read_text()
        assert secret not in Path(f"/proc/{daemon.pid}/environ").read_text()
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert Path(f"/proc/{daemon.pid}/root").stat().st_ino != Path("/").stat().st_ino


def key_secret(cluster: OneNode) -> str:
    (name,) = [name for name in cluster.node.secrets if name.startswith("p2pcache-cluster-key")]
    return name
