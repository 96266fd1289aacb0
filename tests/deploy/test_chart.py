"""The Helm chart, by Helm's own code: lint, schema, and the same objects as kustomize gives."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

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


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    chart = helm.Chart.load(CHART)
    try:
        chart.validate_schema(chart.merge_values(values))
        texts = chart.render(values, name="p2pcache", namespace="p2pcache")
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
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        render(values)
