"""A small kubelet: runs the containers of a pod spec in namespaces of their own, as a node does.

What is real: the mount namespace with a root that holds only what the spec mounts, the network
namespace, the user, the capabilities, no_new_privs, the read-only root, command, arguments and
environment of the manifest. What isn't: the image is this machine's /usr and this checkout's virtual
environment, /proc is the machine's, and there are no cgroups and no seccomp filter.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.kit.daemons import Daemon

REPO = Path(__file__).resolve().parents[2]
ENTRYPOINT = ["env", "--block-signal=INT,TERM", "p2pcache"]  # of the image
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
# Arguments: root, "rw" or "ro", uid, gid, supplementary groups, capabilities, then mounts
# "KIND:SOURCE:TARGET" up to "--", then the command. The shell is replaced: the pid stays.
_ENTER = r"""
set -eu
root=$1 mode=$2 uid=$3 gid=$4 groups=$5 caps=$6
shift 6
mount --make-rprivate /
mount -t tmpfs -o mode=0755,size=16m pod "$root"
mkdir -p "$root/proc" "$root/dev" "$root/tmp" "$root/etc"
mount --rbind /proc "$root/proc"
for device in null zero urandom random; do
    touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"
done
while [ "$1" != -- ]; do
    kind=${1%%:*} rest=${1#*:}
    source=${rest%%:*} target=$root${rest#*:}
    shift
    case $kind in
        link) ln -s "$source" "$target"; continue ;;
        file) mkdir -p "${target%/*}"; touch "$target" ;;
        *) mkdir -p "$target" ;;
    esac
    mount --bind "$source" "$target"
    case $kind in ro|file) mount -o remount,bind,ro "$target" ;; esac
done
shift
if [ "$mode" = ro ]; then mount -o remount,ro "$root"; fi
cd "$root"
exec chroot --userspec=0:0 "$root" /usr/bin/setpriv --pdeathsig KILL --reuid "$uid" --regid "$gid" \
    --groups "$groups" --bounding-set "$caps" --inh-caps "$caps" --ambient-caps -all \
    --no-new-privs --reset-env -- /usr/bin/env -i "$@"
"""


class Node:
    """One machine of the cluster: its disk, its pods' namespaces, and what the API server would give."""

    def __init__(self, root: Path, name: str = "node-1") -> None:
        """`root`: where the node's hostPath volumes, and the roots of its pods, lie."""
        self.name = name
        self.disk = root / "disk"
        self.secrets: dict[str, dict[str, bytes]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.hosts: dict[str, str] = {}  # what the cluster's DNS says: name -> address
        self._work = root
        self._pods = 0

    def learn(self, objects: Sequence[Mapping[str, Any]]) -> None:
        """Take the ConfigMaps and Secrets of rendered manifests."""
        for each in objects:
            name, data = each["metadata"]["name"], each.get("data", {})
            if each["kind"] == "ConfigMap":
                self.configs[name] = dict(data)
            elif each["kind"] == "Secret":
                self.secrets[name] = {k: base64.b64decode(v) for k, v in data.items()}

    def host_path(self, path: str) -> Path:
        """Where a directory of the node really lies."""
        return self.disk / path.lstrip("/")

    def pod(self, template: Mapping[str, Any], *, ip: str = "", netns: Sequence[str] = ()) -> "Pod":
        """A pod on this node.

        Args:
            template: with `spec`, as in a Deployment.
            ip: its address.
            netns: command prefix that enters its network namespace; empty: one without any link.
        """
        self._pods += 1
        folder = self._work / f"pod-{self._pods}"
        folder.mkdir(parents=True)
        return Pod(self, template["spec"], folder, ip, list(netns) or ["unshare", "--net", "--"])


class Pod:
    """One pod; its volumes outlive its containers' restarts."""

    def __init__(
        self, node: Node, spec: Mapping[str, Any], folder: Path, ip: str, netns: list[str]
    ) -> None:
        self.node = node
        self.spec = spec
        self._folder = folder
        self._ip = ip
        self._netns = netns
        self._volumes = {each["name"]: self._volume(each) for each in spec.get("volumes", ())}

    def command(self, container: Mapping[str, Any], *, uid: int | None = None) -> list[str]:
        """The command line that is this container; `uid`: another user than the spec's."""
        security = {**self.spec.get("securityContext", {}), **container.get("securityContext", {})}
        user = security["runAsUser"] if uid is None else uid
        assert uid is not None or (user != 0) == security["runAsNonRoot"]
        group = security.get("runAsGroup", 0)
        groups = {group, security.get("fsGroup", group)}
        capabilities = security["capabilities"]
        assert capabilities["drop"] == ["ALL"]
        assert security["allowPrivilegeEscalation"] is False
        caps = ",".join(["-all", *(f"+{c.lower()}" for c in capabilities.get("add", ()))])
        mode = "ro" if security["readOnlyRootFilesystem"] else "rw"
        root = self._folder / f"root-{container['name']}"
        root.mkdir(exist_ok=True)
        return [
            *self._netns, "unshare", "--mount", "--ipc", "--uts", "--", "sh", "-c", _ENTER, "pod",
            str(root), mode, str(user), str(group), ",".join(map(str, sorted(groups))), caps,
            *_image(), f"file:{self._hosts()}:/etc/hosts", *self._mounts(container), "--",
            *(f"{k}={v}" for k, v in self._environment(container).items()),
            *(container.get("command") or ENTRYPOINT), *container.get("args", ()),
        ]  # fmt: skip

    def run(
        self, container: Mapping[str, Any], *, uid: int | None = None, limit_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a container to its end."""
        return subprocess.run(
            self.command(container, uid=uid), capture_output=True, text=True, timeout=limit_s,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    def start(self, container: Mapping[str, Any]) -> subprocess.Popen[str]:
        """Start a container whose output the caller reads."""
        return subprocess.Popen(
            self.command(container), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def daemon(self, container: Mapping[str, Any], *, ready: Any) -> Daemon:
        """A container that serves; not started yet."""
        name = container["name"]
        log = self._folder / f"{name}.log"
        return Daemon(name, self.command(container), log, ready=ready, leash=False)

    def add_volume(self, name: str) -> Path:
        """One more emptyDir, as a webhook adds it."""
        self._volumes[name] = self._volume({"name": name, "emptyDir": {}})
        return self.volume(name)

    def volume(self, name: str) -> Path:
        """Where a volume really lies."""
        return Path(self._volumes[name])

    def _volume(self, volume: Mapping[str, Any]) -> str:
        """What to mount: a directory of this machine."""
        if "hostPath" in volume:
            path = self.node.host_path(volume["hostPath"]["path"])
            if volume["hostPath"].get("type") == "DirectoryOrCreate":
                path.mkdir(parents=True, exist_ok=True)  # as the kubelet: root's, mode 0755
            assert path.is_dir(), f"FailedMount: hostPath type check failed: {path}"
            return str(path)
        if "secret" in volume:
            return str(self._secret(volume["name"], volume["secret"]))
        assert volume.keys() - {"name"} == {"emptyDir"}
        folder = self._folder / f"volume-{volume['name']}"
        folder.mkdir()
        folder.chmod(0o777)  # as the kubelet makes it
        return str(folder)

    def _secret(self, name: str, source: Mapping[str, Any]) -> Path:
        """As the kubelet lays it out: files behind a link, root's, readable by the pod's group."""
        folder = self._folder / f"volume-{name}"
        (folder / "..1").mkdir(parents=True)
        (folder / "..data").symlink_to("..1")
        group = self.spec.get("securityContext", {}).get("fsGroup", 0)
        for key, data in self.node.secrets[source["secretName"]].items():
            path = folder / "..1" / key
            path.write_bytes(data)
            path.chmod(source["defaultMode"])
            os.chown(path, 0, group)
            (folder / key).symlink_to(f"..data/{key}")
        return folder

    def _mounts(self, container: Mapping[str, Any]) -> list[str]:
        mounts = sorted(container.get("volumeMounts", ()), key=lambda each: each["mountPath"])
        return [
            f"{'ro' if each.get('readOnly') else 'rw'}:{self._volumes[each['name']]}:{each['mountPath']}"
            for each in mounts
        ]

    def _environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        binaries = Path(sys.prefix) / "bin"
        found = {"PATH": f"{binaries}:/usr/bin:/bin"}
        for source in container.get("envFrom", ()):
            if "configMapRef" in source:
                found |= self.node.configs[source["configMapRef"]["name"]]
            else:
                secret = self.node.secrets.get(source["secretRef"]["name"])
                assert secret is not None or source["secretRef"]["optional"]
                found |= {k: v.decode() for k, v in (secret or {}).items()}
        for each in container.get("env", ()):
            value = each.get("value", "")
            if "valueFrom" in each:
                field = each["valueFrom"]["fieldRef"]["fieldPath"]
                value = {"status.podIP": self._ip, "spec.nodeName": self.node.name}[field]
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found[m[1]], value)
        return found

    def _hosts(self) -> Path:
        path = self._folder / "hosts"
        names = {"localhost": "127.0.0.1", **self.node.hosts}
        path.write_text("".join(f"{address}\t{name}\n" for name, address in names.items()))
        return path


def _image() -> list[str]:
    """The image: programs and libraries, Python, this checkout; nothing else of the machine."""
    mounts = []
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            mounts.append(f"link:{path.readlink()}:{name}")
        elif path.is_dir():
            mounts.append(f"ro:{name}:{name}")
    python = {Path(sys.base_prefix).resolve(), Path(sys.prefix), REPO}
    mounts += [f"ro:{p}:{p}" for p in sorted(python) if not p.is_relative_to("/usr")]
    for name in ("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"):
        if Path(name).exists():
            mounts.append(f"file:{name}:{name}")
    return mounts


def objects_of(text: str) -> list[dict[str, Any]]:
    """All objects of a YAML text."""
    import yaml

    loaded = yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [json.loads(json.dumps(each)) for each in loaded if each]


def find(objects: Sequence[Mapping[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return dict(found)
