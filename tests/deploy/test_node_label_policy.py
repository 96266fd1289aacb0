"""The admission policy's CEL expressions, evaluated: what an agent's account may do to Nodes, and what not."""

import copy
from typing import Any

import cel
import pytest

from tests.deploy.kubelet import find, objects_of
from tests.deploy.render import DEPLOY

POLICY = find(
    objects_of((DEPLOY / "kubernetes/components/node-labels/admission.yaml").read_text()),
    "ValidatingAdmissionPolicy",
    "p2pcache-node-labels",
)["spec"]
ACCOUNT = "system:serviceaccount:p2pcache:p2pcache-agent"
NODE: dict[str, Any] = {
    "metadata": {
        "name": "node-1",
        "labels": {"zone": "b", "models.p2pcache.io/old": "1"},
        "annotations": {"a": "1"},
    },
    "spec": {"podCIDR": "10.0.0.0/24"},
}


def request(username: str = ACCOUNT, node: str | None = "node-1") -> dict[str, Any]:
    extra = {} if node is None else {"authentication.kubernetes.io/node-name": [node]}
    return {"userInfo": {"username": username, "extra": extra}}


def allowed(after: dict[str, Any], who: dict[str, Any], before: dict[str, Any] = NODE) -> bool:
    """As the API server decides: conditions, then all validations; an error is a denial."""
    facts: dict[str, Any] = {"request": who, "object": after, "oldObject": before}
    if not all(cel.evaluate(each["expression"], facts) for each in POLICY["matchConditions"]):
        return True
    facts["variables"] = {
        each["name"]: cel.evaluate(each["expression"], facts) for each in POLICY["variables"]
    }
    return all(cel.evaluate(each["expression"], facts) is True for each in POLICY["validations"])


def labelled(**labels: str | None) -> dict[str, Any]:
    node = copy.deepcopy(NODE)
    for name, value in labels.items():
        key = name.replace("models_", "models.p2pcache.io/")
        if value is None:
            del node["metadata"]["labels"][key]
        else:
            node["metadata"]["labels"][key] = value
    return node


def test_its_own_labels_come_and_go() -> None:
    assert allowed(labelled(models_new="1"), request())
    assert allowed(labelled(models_old="2"), request())
    assert allowed(labelled(models_old=None), request())


def test_a_node_without_labels_or_annotations() -> None:
    bare: dict[str, Any] = {"metadata": {"name": "node-1"}, "spec": {}}
    one = {"metadata": {"name": "node-1", "labels": {"models.p2pcache.io/a": "1"}}, "spec": {}}
    assert allowed(one, request(), bare)
    assert allowed(bare, request(), one)


@pytest.mark.parametrize("node", ["node-2", None])
def test_other_nodes_are_not_touched(node: str | None) -> None:
    assert not allowed(labelled(models_new="1"), request(node=node))


@pytest.mark.parametrize("labels", [{"zone": "c"}, {"zone": None}, {"gpu": "yes"}])
def test_other_labels_are_not_touched(labels: dict[str, str | None]) -> None:
    assert not allowed(labelled(**labels), request())


def test_taints_and_annotations_are_not_touched() -> None:
    tainted = labelled(models_new="1")
    tainted["spec"]["taints"] = [{"key": "x", "effect": "NoExecute"}]
    assert not allowed(tainted, request())
    noted = labelled(models_new="1")
    noted["metadata"]["annotations"]["b"] = "2"
    assert not allowed(noted, request())


def test_nobody_else_is_asked() -> None:
    for who in ("system:node:node-2", "admin", "system:serviceaccount:other:p2pcache-agent"):
        assert allowed(labelled(zone="c"), request(who, None))
