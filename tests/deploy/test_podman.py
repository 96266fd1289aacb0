"""The image, and the pods of the one-node walk, as they stand: built by buildah, run by `podman kube play`.

What differs from a cluster: each pod shares one network namespace and is its own object (podman 4 plays no DaemonSet),
Secrets are files (podman 4.3 crashes on Secret volumes), and what the API server would fill in is filled in here.
"""

import copy
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubelet import REPO, find
from tests.deploy.render import example, kustomize

pytestmark = [pytest.mark.functional, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(900)]

INIT = "io.podman.annotations.init.container.type"  # "once" is removed when it ends, and podman 4.3 does so too early
NETNS = f"p2pcache-podman-{os.getpid()}"  # a run that was killed leaves its own behind
MIRROR = "http://deb.debian.org/debian"
FILLED = {"status.podIP": "127.0.0.1", "spec.nodeName": "node-1", "metadata.name": "pod"}


class Podman:
    """podman and buildah with a storage of their own, in a network namespace of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.disk = root / "node"
        self._environ = os.environ | {"CONTAINERS_CONF": str(root / "containers.conf")}
        # The default asks for a million open files, more than this machine may allow.
        (root / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        )
        # Not `ip netns exec`: that mounts another /sys, without cgroups.
        self._command = [
            "nsenter", f"--net=/run/netns/{NETNS}", "podman", f"--root={root}/storage", f"--runroot={root}/run",
            "--cgroup-manager=cgroupfs", "--events-backend=none",
            "--runtime=runc",  # crun refuses machines with both kinds of cgroups
        ]  # fmt: skip

    def __call__(self, *words: str, check: bool = True, seconds: float = 120) -> str:
        command = [*self._command, *words]
        done = subprocess.run(
            command, env=self._environ, capture_output=True, text=True, timeout=seconds, check=False
        )
        assert not check or done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def build(self) -> None:
        """The image of deploy/docker/Dockerfile on a base of Debian, whose Python is 3.11."""
        base = self.root / "base"
        packages = "--include=python3,python3-venv,python3-pip,ca-certificates"
        done = subprocess.run(["debootstrap", "--variant=minbase", packages, "bookworm", str(base), MIRROR],
                              capture_output=True, text=True, timeout=600, check=False)  # fmt: skip
        if done.returncode:
            pytest.skip(f"no Debian to build on: {done.stdout.splitlines()[-1]}")
        (base / "usr/bin/python").symlink_to("python3")
        archive = self.root / "base.tar"
        subprocess.run(["tar", "-C", str(base), "-cf", str(archive), "."], check=True)
        self("import", "-q", str(archive), "localhost/debian-python:test")
        shutil.rmtree(base)
        archive.unlink()
        trusted = "/etc/ssl/certs/ca-certificates.crt"  # of this machine, which may stand behind a proxy of its own
        command = [
            "buildah", f"--root={self.root}/storage", f"--runroot={self.root}/run", "bud", "-q",
            "--network=host", "--isolation=chroot", f"--volume={trusted}:{trusted}:ro",
            "--build-arg=BASE=localhost/debian-python:test", "-f", "deploy/docker/Dockerfile",
            "-t", "p2pcache:0.1.0", ".",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stderr

    def play(
        self, name: str, spec: dict[str, Any], configs: list[dict[str, Any]], restart: str
    ) -> None:
        """Start one pod."""
        pod = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": {INIT: "always"}},
            "spec": {**self._of_this_node(spec), "hostNetwork": True, "restartPolicy": restart},
        }  # fmt: skip
        file = self.root / f"{name}.yaml"
        file.write_text("---\n".join(yaml.safe_dump(each) for each in (*configs, pod)))
        self("kube", "play", "--quiet", str(file))

    def _of_this_node(self, spec: dict[str, Any]) -> dict[str, Any]:
        spec = copy.deepcopy(spec)
        for volume in spec["volumes"]:
            if "secret" in volume:
                name = volume.pop("secret")["secretName"]
                volume["hostPath"] = {
                    "path": str(self.disk / "secrets" / name),
                    "type": "Directory",
                }
            elif "hostPath" in volume:
                path = self.disk / volume["hostPath"]["path"].lstrip("/")
                if volume["hostPath"]["type"] == "DirectoryOrCreate":
                    path.mkdir(parents=True, exist_ok=True)
                volume["hostPath"]["path"] = str(path)
            elif "emptyDir" in volume:
                volume["emptyDir"] = {}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            container["image"] = "localhost/p2pcache:0.1.0"
            container["imagePullPolicy"] = "Never"
            container["envFrom"] = [
                one for one in container.get("envFrom", ()) if "configMapRef" in one
            ]
            for variable in container.get("env", ()):
                if "valueFrom" in variable:
                    variable["value"] = FILLED[variable.pop("valueFrom")["fieldRef"]["fieldPath"]]
            container.pop("ports", None)  # one network namespace: they are open as they are
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                container.pop(probe, None)  # they name ports, which podman 4.3 doesn't know
            if not container["envFrom"]:
                del container["envFrom"]
        return spec

    def said(self, *containers: str) -> str:
        """What they logged last."""
        done = [subprocess.run([*self._command, "logs", "--tail=5", one], env=self._environ, capture_output=True,
                               text=True, check=False) for one in containers]  # fmt: skip
        return "\n".join(each.stdout + each.stderr for each in done)

    def state(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", container))[0]["State"]
        return found

    def exit_code(self, container: str, seconds: float = 60) -> int:
        return int(self("wait", container, seconds=seconds))


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    missing = [
        name
        for name in ("podman", "buildah", "runc", "debootstrap", "ip")
        if shutil.which(name) is None
    ]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {' '.join(missing) or 'podman'} (make tools)")
    subprocess.run(["ip", "netns", "add", NETNS], check=True)
    subprocess.run(["ip", "-n", NETNS, "link", "set", "lo", "up"], check=True)
    # podman takes no long paths, and pytest's are.
    root = Path(tempfile.mkdtemp(prefix="p2pod-"))
    podman = Podman(root)
    try:
        podman.build()
        yield podman
    finally:
        podman("pod", "rm", "--all", "--force", "--time=1", check=False)
        podman("rmi", "--all", "--force", check=False)
        subprocess.run(["ip", "netns", "del", NETNS], check=False)
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def walk(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Podman:
    """Tracker and agent run, and the example's Job has pushed its model."""
    objects = kustomize("overlays/one-node", tmp_path_factory.mktemp("manifests"))
    for each in objects:
        if each["kind"] == "Secret":
            folder = podman.disk / "secrets" / each["metadata"]["name"]
            folder.mkdir(parents=True)
            (folder / "key").write_text("0123456789abcdef" * 4)
            os.chown(folder / "key", 0, 10001)  # as fsGroup and defaultMode have it
            (folder / "key").chmod(0o440)
    configs = [each for each in objects if each["kind"] == "ConfigMap"]
    tracker = find(objects, "Deployment", "p2pcache-tracker")["spec"]["template"]["spec"]
    agent = find(objects, "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    # The cluster's DNS, which one network namespace of this machine doesn't have.
    for variable in agent["containers"][0]["env"]:
        if variable["name"] == "P2PCACHE_TRACKER":
            variable["value"] = "http://127.0.0.1:7400"
    podman.play("tracker", tracker, configs, "Always")
    podman.play("agent", agent, configs, "Always")
    wait(
        lambda: "ready" in status(podman),
        said=lambda: podman.said("tracker-tracker", "agent-agent"),
    )
    job = find(example("one-node-push.yaml"), "Job", "push-demo")["spec"]["template"]["spec"]
    podman.play("push", job, [], "Never")
    assert podman.exit_code("push-push") == 0, podman("logs", "push-push")
    return podman


def wait(condition: Callable[[], bool], seconds: float = 60, said: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.2)


def status(podman: Podman) -> str:
    return podman("exec", "agent-agent", "p2pcache", "status", check=False)


def inference(podman: Podman, name: str) -> None:
    """One pod of the example's Deployment; its init container must bring the model before the server starts."""
    spec = find(example("one-node-pods.yaml"), "Deployment", "demo")["spec"]["template"]["spec"]
    podman.play(name, spec, [], "Never")
    wait(lambda: podman.state(f"{name}-server")["Running"])
    wait(lambda: "weights.bin" in podman("logs", f"{name}-server"))


def test_the_image_is_the_program(podman: Podman) -> None:
    said = podman("run", "--rm", "--network=none", "localhost/p2pcache:0.1.0", "version")
    assert said.startswith("p2pcache ")
    user = podman(
        "run", "--rm", "--network=none", "--entrypoint=id", "localhost/p2pcache:0.1.0", "-u"
    )
    assert user.strip() == "10001"


def test_a_pod_gets_its_model(walk: Podman) -> None:
    inference(walk, "pod-a")
    assert "team/demo" in walk("exec", "agent-agent", "p2pcache", "ls")
    walk("exec", "pod-a-server", "touch", "/models/team/x", check=False)
    assert not (walk.disk / "var/lib/p2pcache/models/team/x").exists()


@pytest.mark.parametrize("victim", ["agent", "tracker"])
def test_a_killed_daemon_comes_back(walk: Podman, victim: str) -> None:
    before = walk.state(f"{victim}-{victim}")["Pid"]
    os.kill(before, 9)
    wait(lambda: walk.state(f"{victim}-{victim}")["Pid"] not in (0, before))
    wait(lambda: "connected" in status(walk))
    inference(walk, f"after-{victim}")


def test_a_killed_pod_starts_again(walk: Podman) -> None:
    inference(walk, "again")
    os.kill(walk.state("again-server")["Pid"], 9)
    wait(lambda: not walk.state("again-server")["Running"])
    walk("pod", "rm", "--force", "--time=1", "again")
    inference(walk, "again")


def test_an_agent_that_is_stopped_ends_well(walk: Podman) -> None:
    """SIGTERM to PID 1 of the container, as a drain does."""
    walk("pod", "stop", "--time=30", "agent")
    state = walk.state("agent-agent")
    assert (state["Running"], state["ExitCode"]) == (False, 0)
    walk("pod", "start", "agent")
    wait(lambda: "connected" in status(walk))
