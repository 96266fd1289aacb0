"""The Helm chart, by Helm's own code: lint, schema, and the same objects as kustomize gives."""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import p2pcache
from tests.deploy.kubelet import find, objects_of
from tests.deploy.render import DEPLOY, kustomize

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed (make setup)")

CHART = str(DEPLOY / "helm" / "p2pcache")
ORIGIN = {"origin": "s3://models/p2pcache"}
FULL = {
    **ORIGIN,
    "image": {"repository": "registry.example/p2pcache", "tag": "x", "pullSecrets": ["pull"]},
    "agent": {
        "hostNetwork": True, "nodeLabels": True, "rackLabel": "example.org/rack", "env": {"P2PCACHE_SITE": "fra1"},
        "cacheDir": "/data/p2pcache", "clientSocketDir": "/run/p2p/client",
        "nodeSelector": {"gpu": "yes"}, "serviceAccountAnnotations": {"eks/role": "arn:x"},
        "affinity": {"nodeAffinity": {}},
    },
    "tracker": {"env": {"P2PCACHE_NEIGHBOURS": "32"}, "tolerations": [{"operator": "Exists"}]},
}  # fmt: skip
_HELMS = ("instance", "version", "managed-by")


def render(values: dict[str, Any], release: str = "p2pcache") -> list[dict[str, Any]]:
    chart = helm.Chart.load(CHART)
    try:
        chart.validate_schema(chart.merge_values(values))
        texts = chart.render(values, name=release, namespace="p2pcache")
    finally:
        chart.close()
    parts = [text for path, text in texts.items() if path.endswith(".yaml")]
    return [each for text in parts for each in objects_of(text)]


def test_lint() -> None:
    report = helm.lint(CHART, ORIGIN, strict=True, namespace="p2pcache")
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


def test_versions_are_those_of_the_program() -> None:
    chart = helm.Chart.load(CHART)
    assert chart.metadata["appVersion"] == chart.metadata["version"] == p2pcache.__version__
    chart.close()


def test_the_defaults_are_the_kustomize_base(tmp_path: Path) -> None:
    ours = {key(each): plain(each) for each in kustomize("overlays/s3", tmp_path)}
    theirs = {key(each): plain(each) for each in render(ORIGIN)}
    # Made by hand beside the chart: the namespace and the key.
    ours = {k: v for k, v in ours.items() if k[0] not in ("Namespace", "Secret")}
    assert theirs.keys() == ours.keys()
    for each, found in ours.items():
        assert theirs[each] == found, each


def key(each: dict[str, Any]) -> tuple[str, str]:
    return each["kind"], _unhashed(each["metadata"]["name"])


def _unhashed(name: str) -> str:
    """Without the suffix of kustomize's generators."""
    return re.sub(r"(p2pcache-(?:tracker|cluster-key))-[a-z0-9]{10}$", r"\1", name)


def plain(each: Any) -> Any:
    """An object without what only one of the two tools adds."""
    if isinstance(each, list):
        return [plain(one) for one in each]
    if isinstance(each, str):
        return _unhashed(each)
    if not isinstance(each, dict):
        return each
    extra = {f"app.kubernetes.io/{name}" for name in _HELMS} | {"helm.sh/chart", "checksum/config"}
    # Defaults that the chart says and the base leaves out, or the other way round.
    extra.add("imagePullPolicy")
    return {k: plain(v) for k, v in each.items() if k not in extra}


def test_all_options_give_valid_objects() -> None:
    objects = render(FULL)
    for each in objects:
        kubernetes_validate.validate(each, "1.37", strict=True)
    spec = find(objects, "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    assert spec["hostNetwork"] is True
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["containers"][0]["image"] == "registry.example/p2pcache:x"
    assert {"name": "P2PCACHE_SITE", "value": "fra1"} in spec["containers"][0]["env"]
    paths = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    assert paths == {"cache": "/data/p2pcache", "client": "/run/p2p/client"}
    assert {"name": "P2PCACHE_KUBERNETES_RACK_LABEL", "value": "example.org/rack"} in (
        spec["containers"][0]["env"]
    )
    policy = find(objects, "ValidatingAdmissionPolicy", "p2pcache-node-labels")["spec"]
    assert "p2pcache:p2pcache-agent" in policy["matchConditions"][0]["expression"]


def test_racks_and_sites_are_those_of_the_component(tmp_path: Path) -> None:
    kustomize("overlays/s3", tmp_path)  # makes the copy that is changed now
    overlay = tmp_path / "kubernetes/overlays/s3/kustomization.yaml"
    text = overlay.read_text().replace("# components:", "components:")
    overlay.write_text(
        text.replace("#   - ../../components/topology", "  - ../../components/topology")
    )
    labels = {"siteLabel": "topology.kubernetes.io/zone", "rackLabel": "topology.p2pcache.io/rack"}
    ours = {key(each): plain(each) for each in kustomize("overlays/s3", tmp_path)}
    theirs = {key(each): plain(each) for each in render({**ORIGIN, "agent": labels})}
    for each in (
        ("DaemonSet", "p2pcache-agent"),
        ("ClusterRole", "p2pcache-topology"),
        ("ClusterRoleBinding", "p2pcache-topology"),
    ):
        assert theirs[each] == ours[each]
    pod = theirs["DaemonSet", "p2pcache-agent"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert theirs["ClusterRole", "p2pcache-topology"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    ]


def test_two_trackers_are_those_of_the_component(tmp_path: Path) -> None:
    kustomize("overlays/s3", tmp_path)  # makes the copy that is changed now
    overlay = tmp_path / "kubernetes/overlays/s3/kustomization.yaml"
    text = overlay.read_text().replace("# components:", "components:")
    overlay.write_text(
        text.replace("#   - ../../components/two-trackers", "  - ../../components/two-trackers")
    )
    ours = {key(each): plain(each) for each in kustomize("overlays/s3", tmp_path)}
    objects = render({**ORIGIN, "tracker": {"replicas": 2}})
    theirs = {key(each): plain(each) for each in objects}
    names = [
        (kind, "p2pcache-tracker") for kind in ("Service", "Deployment", "Role", "RoleBinding")
    ]
    for each in names:
        assert sorted_env(theirs[each]) == sorted_env(ours[each])
    for found in objects:
        kubernetes_validate.validate(found, "1.37", strict=True)
    assert theirs["Service", "p2pcache-tracker"]["spec"]["clusterIP"] == "None"
    spec = theirs["Deployment", "p2pcache-tracker"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "RollingUpdate")
    pod = spec["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert env["P2PCACHE_LEASE"] == "kubernetes"
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert theirs["Role", "p2pcache-tracker"]["rules"] == [
        {**lease, "resourceNames": [env["P2PCACHE_LEASE_NAME"]], "verbs": ["get", "update"]},
        {**lease, "verbs": ["create"]},
    ]


def sorted_env(each: dict[str, Any]) -> dict[str, Any]:
    """Patches of kustomize put new variables first, the chart puts them last."""
    for container in (
        each["spec"]["template"]["spec"]["containers"] if each["kind"] == "Deployment" else ()
    ):
        container["env"] = sorted(container["env"], key=lambda one: str(one["name"]))
    return each


MONITORED = {
    "labels": {"release": "prometheus"},
    "podMonitor": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
}


def test_what_people_add_to_pods_gets_there() -> None:
    both = {
        "env": {"P2PCACHE_NEIGHBOURS": 1_000_000, "P2PCACHE_X": True, "P2PCACHE_Y": 1.5,
                "FROM": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}},
        "envFrom": [{"secretRef": {"name": "more"}}],
        "podAnnotations": {"a": "1"},
        "podLabels": {"team": "x"},
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/extra"}],
        "probes": {"startup": {"failureThreshold": 999}},
    }  # fmt: skip
    objects = render({**ORIGIN, "tracker": both, "agent": both, "ipv6": True})
    for kind, name in (("DaemonSet", "p2pcache-agent"), ("Deployment", "p2pcache-tracker")):
        each = find(objects, kind, name)
        kubernetes_validate.validate(each, "1.37", strict=True)
        template = each["spec"]["template"]
        container = template["spec"]["containers"][0]
        env = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
        assert (env["P2PCACHE_NEIGHBOURS"], env["P2PCACHE_X"], env["P2PCACHE_Y"]) == (
            "1000000",
            "true",
            "1.5",
        )
        assert env["FROM"] == {"secretKeyRef": {"name": "s", "key": "k"}}
        assert env["P2PCACHE_LISTEN"].startswith("[::]:")
        assert {"secretRef": {"name": "more"}} in container["envFrom"]
        assert template["metadata"]["annotations"]["a"] == "1"
        assert template["metadata"]["labels"]["team"] == "x"
        assert {"name": "ca", "mountPath": "/etc/ssl/extra"} in container["volumeMounts"]
        assert {"name": "ca", "configMap": {"name": "ca"}} in template["spec"]["volumes"]
        assert container["startupProbe"]["failureThreshold"] == 999
        assert container["startupProbe"]["periodSeconds"] == 2


def test_two_releases_share_no_name_and_no_pod() -> None:
    one = render({**FULL, "monitoring": MONITORED})
    other = render({**FULL, "monitoring": MONITORED, "fullnameOverride": "blue"}, release="blue")
    shared = {key(each) for each in one} & {key(each) for each in other}
    assert shared == {
        ("PriorityClass", "p2pcache")
    }  # cluster-wide: the second release sets priorityClass.create: false
    for each in other:
        for selector in _selectors(each):
            assert selector["app.kubernetes.io/instance"] == "blue"
    env = find(other, "DaemonSet", "blue-agent")["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "P2PCACHE_TRACKER", "value": "http://blue-tracker:7400"} in env


def _selectors(each: Any) -> list[dict[str, str]]:
    if isinstance(each, list):
        return [one for item in each for one in _selectors(item)]
    if not isinstance(each, dict):
        return []
    found = [each["matchLabels"]] if "app.kubernetes.io/name" in each.get("matchLabels", {}) else []
    if each.get("kind") == "Service":
        found.append(each["spec"]["selector"])
    return found + [one for item in each.values() for one in _selectors(item)]


def test_an_image_by_digest() -> None:
    digest = "sha256:" + "a" * 64
    image = {"repository": "registry.example/p2pcache", "tag": "x", "digest": digest}
    for each in render({**ORIGIN, "image": image}):
        if each["kind"] in ("DaemonSet", "Deployment"):
            spec = each["spec"]["template"]["spec"]
            images = {one["image"] for one in spec["containers"] + spec.get("initContainers", [])}
            assert images == {f"registry.example/p2pcache@{digest}"}


def test_pools_of_nodes_have_a_daemonset_each() -> None:
    pools = [
        {"name": "h100", "nodeSelector": {"gpu": "h100"}, "cacheDir": "/nvme", "env": {"B": 2}},
        {"name": "l4", "nodeSelector": {"gpu": "l4"}, "tolerations": []},
    ]
    objects = render({**ORIGIN, "agent": {"env": {"A": "1"}, "pools": pools}})
    sets = [each for each in objects if each["kind"] == "DaemonSet"]
    assert [each["metadata"]["name"] for each in sets] == [
        "p2pcache-agent-h100",
        "p2pcache-agent-l4",
    ]
    for each in sets:
        kubernetes_validate.validate(each, "1.37", strict=True)
    h100, l4 = (each["spec"]["template"]["spec"] for each in sets)
    names = [{one["name"] for one in spec["containers"][0]["env"]} for spec in (h100, l4)]
    assert {"A", "B"} <= names[0]
    assert "A" in names[1]
    assert "B" not in names[1]
    assert {v["hostPath"]["path"] for v in h100["volumes"] if v["name"] == "cache"} == {"/nvme"}
    assert h100["tolerations"]
    assert "tolerations" not in l4
    selectors = [each["spec"]["selector"]["matchLabels"] for each in sets]
    assert selectors[0] != selectors[1]


@pytest.mark.parametrize(
    "volume", [{"nfs": {"server": "nas", "path": "/m"}}, {"hostPath": {"path": "/m"}}]
)
def test_a_directory_as_storage_is_mounted_in_every_pod(volume: dict[str, Any]) -> None:
    objects = render({"origin": "file:///origin", "originVolume": volume})
    for kind, name in (("DaemonSet", "p2pcache-agent"), ("Deployment", "p2pcache-tracker")):
        each = find(objects, kind, name)
        kubernetes_validate.validate(each, "1.37", strict=True)
        spec = each["spec"]["template"]["spec"]
        assert {"name": "origin", **volume} in spec["volumes"]
        assert {"name": "origin", "mountPath": "/origin"} in spec["containers"][0]["volumeMounts"]
    agent = find(objects, "DaemonSet", "p2pcache-agent")["spec"]["template"]["spec"]
    # The kubelet makes a node's directory for root; a share has its own rights.
    assert ("/origin" in agent["initContainers"][0]["command"]) == ("hostPath" in volume)


def test_alerts_and_dashboard_are_those_of_the_project() -> None:
    objects = render({**ORIGIN, "monitoring": MONITORED})
    rule = find(objects, "PrometheusRule", "p2pcache")
    assert rule["spec"] == yaml.safe_load((DEPLOY / "monitoring" / "alerts.yaml").read_text())
    board = find(objects, "ConfigMap", "p2pcache-dashboard")
    ours = json.loads((DEPLOY / "monitoring" / "dashboard.json").read_text())
    assert json.loads(board["data"]["p2pcache.json"]) == ours
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    monitors = [each for each in objects if each["kind"] == "PodMonitor"]
    jobs = [
        each["spec"]["podMetricsEndpoints"][0]["relabelings"][0]["replacement"] for each in monitors
    ]
    assert sorted(jobs) == ["p2pcache-agent", "p2pcache-tracker"]
    ports = {one["name"] for each in objects if each["kind"] in ("DaemonSet", "Deployment")
             for one in each["spec"]["template"]["spec"]["containers"][0]["ports"]}  # fmt: skip
    assert {each["spec"]["podMetricsEndpoints"][0]["port"] for each in monitors} <= ports
    for each in monitors:
        assert each["metadata"]["labels"]["release"] == "prometheus"


def test_links_of_alerts_lead_where_the_docs_are() -> None:
    where = {**MONITORED, "prometheusRule": {"enabled": True, "docsUrl": "https://docs.test/p/"}}
    rule = find(render({**ORIGIN, "monitoring": where}), "PrometheusRule", "p2pcache")
    rules = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(rules) > 20
    for one in rules:
        link = f"https://docs.test/p/runbook/#{one['alert'].lower()}"
        assert one["annotations"]["runbook_url"] == link


def test_a_pool_of_pushers() -> None:
    pools = [{"name": "build", "pusher": True}, {"name": "gpu"}]
    objects = render({**ORIGIN, "tls": {"enabled": True}, "agent": {"pools": pools}})
    for pool, role in (("build", "pusher"), ("gpu", "agent")):
        spec = find(objects, "DaemonSet", f"p2pcache-agent-{pool}")["spec"]["template"]["spec"]
        (volume,) = [one for one in spec["volumes"] if one["name"] == "tls"]
        uri = volume["csi"]["volumeAttributes"]["csi.cert-manager.io/uri-sans"]
        assert uri == f"p2pcache://{role}/${{POD_NAME}}"


def test_monitors_of_an_mtls_tracker_say_how_it_is_proved() -> None:
    proof = {"serverName": "p2pcache-tracker", "ca": {"secret": {"name": "ca", "key": "ca.crt"}}}
    tls = {**ORIGIN, "tls": {"enabled": True}}
    objects = render({**tls, "monitoring": {**MONITORED, "tlsConfig": proof}})
    endpoint = find(objects, "PodMonitor", "p2pcache-tracker")["spec"]["podMetricsEndpoints"][0]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", proof)
    with pytest.raises(helm.HelmError, match="tlsConfig"):
        render({**tls, "monitoring": MONITORED})


def test_parts_can_be_left_out() -> None:
    off = {"networkPolicy": {"enabled": False}, "priorityClass": {"create": False}}
    kinds = {each["kind"] for each in render({**ORIGIN, **off})}
    assert not kinds & {"NetworkPolicy", "PriorityClass", "ClusterRole"}


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"origin": "models"},
        {**ORIGIN, "agnet": {}},
        {**ORIGIN, "agent": {"cacheDir": "relative", "clientSocketDir": "/x"}},
        {**ORIGIN, "agent": {"hostNetwork": "yes"}},
        {**ORIGIN, "agent": {"rackLabel": "a b"}},
        {**ORIGIN, "priorityClass": {"value": 2_000_000_000}},
        {"origin": "file:///origin"},
        {**ORIGIN, "originVolume": {"hostPath": {"path": "/m"}}},
        {**ORIGIN, "image": {"repository": "x", "digest": "latest"}},
        {**ORIGIN, "agent": {"pools": [{"nodeSelector": {}}]}},
        {**ORIGIN, "agent": {"pools": [{"name": "a", "hostNetwork": True}]}},
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        render(values)
