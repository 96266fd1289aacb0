"""Every object against the Kubernetes OpenAPI schemas, as `kubectl kustomize` renders it, and house rules."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import msgspec
import pytest

import p2pcache
from p2pcache.agent.settings import DEFAULT_CLIENT_SOCKET, AgentSettings
from p2pcache.cli.support.client_options import ClientSettings
from p2pcache.core.host.kubernetes_labels import label_key
from p2pcache.ids import Ref
from p2pcache.loader.integrations.vllm import LOAD_FORMAT, split_extra_config
from p2pcache.tracker.settings import TrackerSettings
from tests.deploy.kubelet import find, objects_of
from tests.deploy.render import DEPLOY, example, kustomize, tool

VERSION = "1.37"  # of Kubernetes; the carried schemas go from 1.25 on
COMPONENTS = ("node-labels", "topology", "host-network", "mtls")
EXAMPLES = (
    "inference.yaml",
    "one-node-push.yaml",
    "one-node-pods.yaml",
    "kserve.yaml",
    "kserve-llm.yaml",
    "vllm-streaming.yaml",
    "vllm-compile-cache.yaml",
)

Objects = list[dict[str, Any]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Objects]:
    """Base, overlays, and an overlay with all components."""
    tmp = tmp_path_factory.mktemp("manifests")
    tool("kubectl")
    found = {name: kustomize(name, tmp) for name in ("base", "overlays/s3", "overlays/one-node")}
    full = tmp / "kubernetes" / "overlays" / "s3"
    lines = (full / "kustomization.yaml").read_text().replace("# components:", "components:")
    for component in COMPONENTS:
        assert f"#   - ../../components/{component}" in lines
        lines = lines.replace(
            f"#   - ../../components/{component}", f"  - ../../components/{component}"
        )
    (full / "kustomization.yaml").write_text(lines)
    return {**found, "all": kustomize("overlays/s3", tmp)}


def validate(found: dict[str, Any], version: str = VERSION) -> None:
    kubernetes_validate.validate(found, version, strict=True)


def pods(objects: Objects) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(object, pod template) of everything that makes pods."""
    for each in objects:
        if each["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield each, each["spec"]["template"]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


@pytest.mark.parametrize("version", ["1.30", VERSION])
def test_every_object_fits_the_schemas(rendered: dict[str, Objects], version: str) -> None:
    for objects in rendered.values():
        for each in objects:
            validate(each, version)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_fits_the_schemas(name: str) -> None:
    for each in example(name):
        if each["apiVersion"].startswith("serving.kserve.io/"):
            continue  # below
        validate(each)


def test_a_wrong_object_is_found() -> None:
    bad = example("inference.yaml")[1]
    bad["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(bad)


def test_kserve_objects() -> None:
    """KServe's own schemas come in no package: the fields by its API types, the container as a pod's."""
    storage = find(example("kserve.yaml"), "ClusterStorageContainer", "p2pcache")
    spec = storage["spec"]
    assert storage["apiVersion"] == "serving.kserve.io/v1alpha1"
    assert spec.keys() == {"container", "supportedUriFormats", "workloadType"}
    assert spec["supportedUriFormats"] == [{"prefix": "p2pcache://"}]
    assert spec["container"]["name"] == "storage-initializer"
    service = find(example("kserve.yaml"), "InferenceService", "llama")["spec"]["predictor"]
    assert service["model"]["storageUri"].startswith("p2pcache://")
    pod = {"containers": [spec["container"]], "volumes": service["volumes"]}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod})
    named = {each["name"] for each in service["volumes"]}
    assert {each["name"] for each in spec["container"]["volumeMounts"]} == named


def test_kserve_llm_fills_where_the_server_looks() -> None:
    """`spec.template` of an LLMInferenceService is a pod's spec; KServe adds image and command to `main`."""
    service = find(example("kserve-llm.yaml"), "LLMInferenceService", "llama")["spec"]
    assert service["storageInitializer"] == {"enabled": False}
    assert "://" in service["model"]["uri"]  # all that KServe checks then
    template = service["template"]
    template["containers"][0]["image"] = "kserve-adds-it"
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template})
    filler, server = template["initContainers"][0], template["containers"][0]
    assert server["name"] == "main"
    assert filler["args"] == [service["model"]["uri"], "/mnt/models"]
    writes = {one["mountPath"]: one["name"] for one in filler["volumeMounts"]}
    reads = {one["mountPath"]: one["name"] for one in server["volumeMounts"]}
    assert reads["/mnt/models"] == writes["/mnt/models"]
    assert {*writes.values()} == {one["name"] for one in template["volumes"]}


@pytest.mark.parametrize("name", ["inference", "vllm-streaming", "vllm-compile-cache"])
def test_engines_have_a_home_and_shared_memory(name: str) -> None:
    for each, template in pods(example(f"{name}.yaml")):
        spec = template["spec"]
        memory = [one["name"] for one in spec["volumes"] if one.get("emptyDir", {}).get("medium")]
        for container in spec["containers"]:
            mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
            assert mounts["/dev/shm"]["name"] in memory, each["metadata"]["name"]
            home = next(one["value"] for one in container["env"] if one["name"] == "HOME")
            over = [
                one for path, one in mounts.items() if home == path or home.startswith(f"{path}/")
            ]
            assert over, home
            assert not any(one.get("readOnly") for one in over)


def everything(rendered: dict[str, Objects]) -> Objects:
    return [
        *itertools.chain(*rendered.values()),
        *example("inference.yaml"),
        *example("one-node-push.yaml"),
        *example("one-node-pods.yaml"),
        *example("vllm-streaming.yaml"),
        *example("vllm-compile-cache.yaml"),
    ]


def test_containers_have_no_rights_to_spare(rendered: dict[str, Objects]) -> None:
    for _, template in pods(everything(rendered)):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(spec):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            if container["image"].startswith("p2pcache"):
                assert security["readOnlyRootFilesystem"] is True
            if container["name"] == "directories":  # the one that is root, for chown alone
                assert security["capabilities"]["add"] == ["CHOWN"]
                continue
            assert "add" not in security["capabilities"]
            assert security.get("runAsUser", 1) > 0


def test_settings_are_settings(rendered: dict[str, Objects]) -> None:
    rooms: dict[str, type[msgspec.Struct]] = {
        "agent": AgentSettings,
        "tracker": TrackerSettings,
        "model": ClientSettings,
    }
    seen = set()
    for _, template in pods(everything(rendered)):
        for container in containers(template["spec"]):
            kind = rooms.get(container["name"])
            if kind is None:
                continue
            seen.add(container["name"])
            known = {f"P2PCACHE_{f.name.upper()}" for f in msgspec.structs.fields(kind)}
            given = {e["name"] for e in container["env"] if e["name"].startswith("P2PCACHE_")}
            assert given <= known, container["name"]
    assert seen == set(rooms)
    for objects in rendered.values():
        (config,) = [each for each in objects if each["kind"] == "ConfigMap"]
        assert config["data"].keys() == {"P2PCACHE_ORIGIN"}


def test_images_are_of_this_version(rendered: dict[str, Objects]) -> None:
    for _, template in pods(everything(rendered)):
        for container in containers(template["spec"]):
            name, _, tag = container["image"].partition(":")
            assert name != "p2pcache" or tag == p2pcache.__version__


def test_selectors_find_what_they_are_for(rendered: dict[str, Objects]) -> None:
    for objects in rendered.values():
        found = {o["metadata"]["name"]: t for o, t in pods(objects)}
        for each in objects:
            selector = {
                "Service": lambda o: o["spec"]["selector"],
                "PodDisruptionBudget": lambda o: o["spec"]["selector"]["matchLabels"],
                "NetworkPolicy": lambda o: o["spec"]["podSelector"]["matchLabels"],
                "Deployment": lambda o: o["spec"]["selector"]["matchLabels"],
                "DaemonSet": lambda o: o["spec"]["selector"]["matchLabels"],
            }.get(each["kind"])
            if selector is None:
                continue
            labels = found[each["metadata"]["name"]]["metadata"]["labels"]
            assert selector(each).items() <= labels.items()


def test_network_policies_name_ports_that_exist(rendered: dict[str, Objects]) -> None:
    policies = [each for each in rendered["base"] if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 2
    templates = {o["metadata"]["name"]: t for o, t in pods(rendered["base"])}
    for policy in policies:
        (container,) = templates[policy["metadata"]["name"]]["spec"]["containers"]
        open_ports = [p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]]
        assert sorted(open_ports) == sorted(p["name"] for p in container["ports"])
        assert all(rule["from"] for rule in policy["spec"]["ingress"])
    agents = find(rendered["base"], "NetworkPolicy", "p2pcache-agent")
    (peers,) = [r for r in agents["spec"]["ingress"] if r["ports"] == [{"port": "peers"}]]
    selectors = [one["podSelector"]["matchLabels"] for one in peers["from"]]
    kinds = {one["app.kubernetes.io/component"] for one in selectors}
    assert kinds == {"agent", "tracker"}, "the tracker dials members back"


def test_inference_pods_mount_what_the_agents_offer(rendered: dict[str, Objects]) -> None:
    agent = find(rendered["base"], "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    paths = {v["name"]: v["hostPath"]["path"] for v in agent["volumes"] if "hostPath" in v}
    client_directory = str(Path(DEFAULT_CLIENT_SOCKET).parent)
    for name in ("inference.yaml", "one-node-pods.yaml"):
        for each, template in pods(example(name)):
            if each["kind"] != "Deployment":
                continue
            spec = template["spec"]
            of_node = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
            assert {*of_node.values()} == {paths["client"], f"{paths['cache']}/models"}
            for container in containers(spec):
                assert all(
                    m.get("readOnly") for m in container["volumeMounts"] if m["name"] in of_node
                )
                assert client_directory in {m["mountPath"] for m in container["volumeMounts"]}


def test_the_streaming_example_streams_what_its_init_container_left_out(
    rendered: dict[str, Objects],
) -> None:
    spec = find(example("vllm-streaming.yaml"), "Deployment", "llama-streaming")["spec"][
        "template"
    ]["spec"]
    agent = find(rendered["base"], "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    paths = {v["name"]: v["hostPath"]["path"] for v in agent["volumes"] if "hostPath" in v}
    mounted = {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    assert mounted == {paths["client"], f"{paths['cache']}/models"}
    (init,), (server,) = spec["initContainers"], spec["containers"]
    (_, ref, _, left_out, _, folder) = init["args"]
    told = dict(argument.removeprefix("--").split("=", 1) for argument in server["args"])
    extra, theirs = split_extra_config(json.loads(told["model-loader-extra-config"]))
    assert (extra.ref, theirs, left_out) == (ref, {}, "*.safetensors")
    assert told["load-format"] == LOAD_FORMAT
    assert server["command"][-1] == folder
    assert [each for each in server["env"] if each["name"] != "HOME"] == init["env"]
    for container in (init, server):
        places = {m["name"]: m for m in container["volumeMounts"]}
        assert Path(folder).is_relative_to(places["model"]["mountPath"])
        assert folder != places["model"]["mountPath"]
        assert all(m.get("readOnly") for name, m in places.items() if name.startswith("p2pcache-"))


def test_the_compile_cache_example_restores_what_its_job_saves() -> None:
    objects = example("vllm-compile-cache.yaml")
    job = find(objects, "Job", "llama-compile")["spec"]["template"]["spec"]
    pod = find(objects, "Deployment", "llama-compiled")["spec"]["template"]["spec"]
    (compiles,), (_, restores), (serves,) = (
        job["containers"],
        pod["initContainers"],
        pod["containers"],
    )
    ref, folder = restores["args"]
    assert restores["command"][0] == "p2pcache-init"
    assert restores["image"] == serves["image"] == compiles["image"], "the key is the engine's"
    (saving,) = re.findall(
        r"p2pcache compile-cache save (\S+) --engine (\S+) .*\\\n\s+--extra (\S+)",
        compiles["args"][0],
    )
    assert (f"p2pcache://{saving[0]}", saving[1]) == (ref, restores["command"][2])
    assert saving[2] in restores["command"]
    for container in (compiles, restores, serves):
        told = {each["name"]: each["value"] for each in container["env"]}
        assert told["VLLM_CACHE_ROOT"] == folder
        assert told["TRITON_CACHE_DIR"].startswith(folder)
        assert saving[0].startswith(told["P2PCACHE_COMPILE_CACHE_NAMESPACES"] + "/")
        places = {m["name"]: m for m in container["volumeMounts"]}
        assert Path(folder).parent == Path(places["cache"]["mountPath"])
        assert all(m.get("readOnly") for name, m in places.items() if name.startswith("p2pcache-"))
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "serviceAccountName" not in pod, "a server may write nowhere"


def test_the_example_prefers_nodes_by_the_label_that_agents_set() -> None:
    spec = find(example("inference.yaml"), "Deployment", "llama")["spec"]["template"]["spec"]
    wanted = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = wanted[0]["preference"]["matchExpressions"]
    (_, ref) = spec["initContainers"][0]["args"]
    assert expression == {"key": label_key(Ref.parse(ref)), "operator": "Exists"}


def test_components(rendered: dict[str, Objects]) -> None:
    plain = find(rendered["overlays/s3"], "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    full = find(rendered["all"], "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    assert plain["automountServiceAccountToken"] is False
    assert full["automountServiceAccountToken"] is True
    assert full["hostNetwork"] is True
    assert "hostNetwork" not in plain
    assert {"name": "P2PCACHE_KUBERNETES_LABELS", "value": "true"} in full["containers"][0]["env"]
    kinds = {each["kind"] for each in rendered["all"]} - {
        each["kind"] for each in rendered["overlays/s3"]
    }
    assert kinds == {
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }


def test_no_key_is_in_the_tree() -> None:
    for path in DEPLOY.rglob("*"):
        assert path.suffix not in (".key", ".env") or not _tracked(path), path
    names = [o["metadata"]["name"] for o in example("inference.yaml") if o["kind"] == "Secret"]
    assert names == []


def _tracked(path: Path) -> bool:
    import subprocess

    command = ["git", "ls-files", "--error-unmatch", str(path)]
    return subprocess.run(command, cwd=DEPLOY, capture_output=True, check=False).returncode == 0


def test_the_guide_names_what_exists(rendered: dict[str, Objects]) -> None:
    text = (DEPLOY.parent / "docs" / "kubernetes.md").read_text()
    here = {"": DEPLOY.parent, "../": DEPLOY.parent, "../../": DEPLOY / "kubernetes"}
    for prefix, path in re.findall(r"((?:\.\./)*)((?:deploy|examples|overlays)/[\w./-]+\w)", text):
        assert (here[prefix] / path).exists() or (DEPLOY / "kubernetes" / path).exists(), path
    objects = [*everything(rendered), {"kind": "Secret", "metadata": {"name": "p2pcache-storage"}}]
    names = {(each["kind"].lower(), each["metadata"]["name"]) for each in objects}
    for kind, name in re.findall(r"\b(deployment|daemonset|job|ds)/([\w-]+)", text):
        assert (kind.replace("ds", "daemonset"), name) in names


PODMAN = DEPLOY / "podman"


def test_the_pods_for_podman_are_those_of_the_one_node_overlay(
    rendered: dict[str, Objects],
) -> None:
    """Arguments, users and mounts are equal; settings are a part of them."""
    (alone,) = objects_of((PODMAN / "one-node.yaml").read_text())
    (demo,) = objects_of((PODMAN / "demo-pod.yaml").read_text())
    validate(alone)
    validate(demo)
    here = {each["name"]: each for each in (*containers(alone["spec"]), *containers(demo["spec"]))}
    overlay = [template["spec"] for _, template in pods(rendered["overlays/one-node"])]
    (pod,) = [template["spec"] for _, template in pods(example("one-node-pods.yaml"))]
    there = {each["name"]: each for spec in (*overlay, pod) for each in containers(spec)}
    assert set(here) == set(there) == {"tracker", "agent", "directories", "model", "server"}
    for name, container in here.items():
        model = there[name]
        assert container.get("args") == model.get("args")
        assert container.get("command") == model.get("command")
        places = {(each["name"], each["mountPath"]) for each in container["volumeMounts"]}
        assert places == {(each["name"], each["mountPath"]) for each in model["volumeMounts"]}
        security = container["securityContext"]
        assert security["capabilities"] == model["securityContext"]["capabilities"]
        assert {each["name"] for each in container.get("env", ())} - {"P2PCACHE_ORIGIN"} <= {
            each["name"] for each in model.get("env", ())
        }
