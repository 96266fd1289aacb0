"""mTLS in Kubernetes: what is asked of cert-manager's csi-driver, and that its answer is good for the daemons."""

import asyncio
import datetime as dt
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from p2pcache.io.security import ca
from tests.agent.kit import agent
from tests.deploy.kubelet import find
from tests.deploy.render import kustomize
from tests.deploy.test_chart import FULL, ORIGIN, helm, key, plain, render
from tests.tracker.kit import tracker

TLS = {**ORIGIN, "tls": {"enabled": True}}
# Of its API, v1alpha1, as far as it concerns us; key-algorithm and key-size since 0.11 (RSA before).
ATTRIBUTES = {
    f"csi.cert-manager.io/{name}"
    for name in ("issuer-name", "issuer-kind", "uri-sans", "dns-names", "key-usages", "key-algorithm",
                 "key-size", "key-encoding", "duration", "fs-group")
}  # fmt: skip
WORKLOADS = {
    "agent": ("DaemonSet", "p2pcache-agent"),
    "tracker": ("Deployment", "p2pcache-tracker"),
}


def pod(objects: list[dict[str, Any]], role: str) -> dict[str, Any]:
    spec: dict[str, Any] = find(objects, *WORKLOADS[role])["spec"]["template"]["spec"]
    return spec


def volume(spec: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in spec["volumes"] if each["name"] == "tls"]
    return dict(found)


def environ(spec: dict[str, Any]) -> dict[str, str]:
    return {e["name"]: e["value"] for e in spec["containers"][0]["env"] if "value" in e}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return render(TLS)


def test_the_chart_and_the_component_are_the_same(
    objects: list[dict[str, Any]], tmp_path: Path
) -> None:
    kustomize("base", tmp_path)
    overlay = tmp_path / "kubernetes/overlays/s3/kustomization.yaml"
    text = overlay.read_text()
    text = text.replace("# components:", "components:")
    text = text.replace("#   - ../../components/mtls", "  - ../../components/mtls")
    overlay.write_text(text)
    ours = {key(each): plain(each) for each in kustomize("overlays/s3", tmp_path)}
    theirs = {key(each): plain(each) for each in objects}
    for each in WORKLOADS.values():
        assert _sorted(ours[each]) == _sorted(theirs[each])


def _sorted(each: Any) -> Any:
    """Named things in one order: kustomize puts what a patch adds first."""
    if isinstance(each, dict):
        return {k: _sorted(v) for k, v in each.items()}
    if isinstance(each, list) and all(isinstance(one, dict) and "name" in one for one in each):
        return sorted((_sorted(one) for one in each), key=lambda one: str(one["name"]))
    return each


@pytest.mark.parametrize("role", ["agent", "tracker"])
def test_what_is_asked_of_the_driver(objects: list[dict[str, Any]], role: str) -> None:
    for each in objects:
        kubernetes_validate.validate(each, "1.37", strict=True)
    spec = pod(objects, role)
    asked = volume(spec)["csi"]["volumeAttributes"]
    assert asked.keys() <= ATTRIBUTES
    assert all(isinstance(value, str) for value in asked.values())
    assert asked["csi.cert-manager.io/uri-sans"] == f"p2pcache://{role}/${{POD_NAME}}"
    assert int(asked["csi.cert-manager.io/fs-group"]) == spec["securityContext"]["fsGroup"]
    for name, file in (("CERT", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt")):
        assert environ(spec)[f"P2PCACHE_TLS_{name}"] == f"/etc/p2pcache/tls/{file}"


def test_the_tracker_is_asked_by_https(objects: list[dict[str, Any]]) -> None:
    host = re.fullmatch(
        r"https://([a-z0-9-]+):7400", environ(pod(objects, "agent"))["P2PCACHE_TRACKER"]
    )
    assert host is not None
    spec = pod(objects, "tracker")
    hosts = volume(spec)["csi"]["volumeAttributes"]["csi.cert-manager.io/dns-names"]
    assert host.group(1) in hosts.split(",")
    probes = [
        spec["containers"][0][f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")
    ]
    assert {probe["httpGet"]["scheme"] for probe in probes} == {"HTTPS"}
    plain_probe = pod(objects, "agent")["containers"][0]["livenessProbe"]["httpGet"]
    assert "scheme" not in plain_probe  # the agent's health port stays as it is


def test_secrets_instead_of_the_driver() -> None:
    secrets = {"enabled": True, "agentSecret": "agents-tls", "trackerSecret": "tracker-tls"}
    objects = render({**FULL, "tls": secrets})
    for each in objects:
        kubernetes_validate.validate(each, "1.37", strict=True)
    for role, name in (("agent", "agents-tls"), ("tracker", "tracker-tls")):
        assert volume(pod(objects, role))["secret"] == {"secretName": name, "defaultMode": 0o440}


@pytest.mark.parametrize(
    "tls", [{"enabled": True, "agentSecret": "x"}, {"enabled": "yes"}, {"duration": "7d"},
            {"issuer": {"kind": "Anything"}}],
)  # fmt: skip
def test_wrong_tls_values_are_refused(tls: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmError):
        render({**ORIGIN, "tls": tls})


@pytest.mark.parametrize("algorithm", ["ECDSA", "RSA"])  # RSA: drivers before 0.11
async def test_the_drivers_answer_is_good_for_the_daemons(
    objects: list[dict[str, Any]], tmp_path: Path, algorithm: str
) -> None:
    ca.init(tmp_path / "ca", cluster="kube")
    paths: dict[str, dict[str, Any]] = {}
    for role, name in (("agent", "p2pcache-agent-x7k2p"), ("tracker", "p2pcache-tracker-59b4-q")):
        asked = volume(pod(objects, role))["csi"]["volumeAttributes"]
        mounted = tmp_path / f"{role}-tls"
        issue_as_the_driver(tmp_path / "ca", mounted, asked, name, algorithm)
        env = environ(pod(objects, role))
        paths[role] = {
            setting: str(mounted / Path(env[f"P2PCACHE_{setting.upper()}"]).name)
            for setting in ("tls_cert", "tls_key", "tls_ca")
        }
    async with tracker(**paths["tracker"]) as one:
        url = f"https://{one.address}"
        async with agent(tmp_path, tracker=url, **paths["agent"]) as app:
            assert app.link is not None
            async with asyncio.timeout(30):
                while not app.link.connected:
                    assert app.link.refusal is None, app.link.last_error
                    await asyncio.sleep(0.02)
            assert app.tls is not None
            assert app.tls.member.name == "p2pcache-agent-x7k2p"


def issue_as_the_driver(
    authority: Path, mounted: Path, asked: dict[str, str], pod_name: str, algorithm: str
) -> None:
    """A stand-in for the csi-driver and a CA issuer: the files as they come into the pod."""
    ask = {name.partition("/")[2]: value for name, value in asked.items()}
    variables = {"${POD_NAME}": pod_name, "${POD_NAMESPACE}": "p2pcache"}
    for name, value in ask.items():
        for variable, meaning in variables.items():
            ask[name] = ask[name].replace(variable, meaning)
        assert "$" not in ask[name], value
    private: Any = (
        ec.generate_private_key(ec.SECP256R1()) if algorithm == "ECDSA"
        else rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )  # fmt: skip
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(ask["uri-sans"])]
    names += [x509.DNSName(host) for host in ask.get("dns-names", "").split(",") if host]
    parent = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    signer: Any = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    now = dt.datetime.now(dt.UTC)
    uses = {"server auth": ExtendedKeyUsageOID.SERVER_AUTH, "client auth": ExtendedKeyUsageOID.CLIENT_AUTH}  # fmt: skip
    usages = [use for name, use in uses.items() if name in ask["key-usages"].split(",")]
    hours = dt.timedelta(hours=int(ask["duration"].removesuffix("h")))
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([])).issuer_name(parent.subject).public_key(private.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(now + hours)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )  # fmt: skip
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    files = {
        "tls.crt": made.public_bytes(pem),
        "tls.key": private.private_bytes(pem, form, serialization.NoEncryption()),
        "ca.crt": parent.public_bytes(pem),
    }
    # As all of Kubernetes' own volumes: links into a folder that a renewal swaps.
    (mounted / "..2026").mkdir(parents=True)
    (mounted / "..data").symlink_to("..2026")
    for name, data in files.items():
        (mounted / "..2026" / name).write_bytes(data)
        (mounted / "..2026" / name).chmod(0o440)
        (mounted / name).symlink_to(f"..data/{name}")
