"""The record of a tenure as a `coordination.k8s.io/v1 Lease`, changed by its resourceVersion.

The API server refuses an update that names another resourceVersion than the object's (409). Holder, times and count of
transitions are what kubectl and others read, as client-go writes them; nobody's clock is compared with them here. Our
own fields are annotations. An update replaces the object, so it takes along what others wrote into it.
"""

import datetime as dt
import math
from typing import Any
from urllib.parse import quote

import msgspec

from p2pcache.core.format.tenure_record import TenureRecord, checked
from p2pcache.errors import Conflict, IntegrityError, NotAllowed, P2PCacheError, Unreachable
from p2pcache.io.host.kube_api import KubeApi
from p2pcache.io.tenures.in_origin import checked_name

API = "coordination.k8s.io/v1"
URL, GENERATION, RENEWAL = "p2pcache.io/url", "p2pcache.io/generation", "p2pcache.io/renewal"


class _Metadata(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' names
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}


class _Spec(msgspec.Struct):
    holderIdentity: str | None = None  # noqa: N815
    leaseDurationSeconds: int | None = None  # noqa: N815
    leaseTransitions: int | None = None  # noqa: N815


class _Answer(msgspec.Struct):
    """A Lease, or a Status with an error: the parts of both that we use."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    message: str = ""


class KubernetesTenure:
    """One Lease in the pod's namespace."""

    def __init__(self, api: KubeApi, name: str) -> None:
        """No contact yet; the namespace is the service account's.

        Args:
            api: the API server.
            name: of the Lease.

        Raises:
            UsageError: not a name.
            NotAllowed: the pod has no service account.
        """
        namespace = api.namespace()
        self._api = api
        self._name = checked_name(name)
        self._last = _Answer()  # as the server gave it last
        self._raw: dict[str, Any] = {}  # the same, with the fields that we don't know
        self._all = f"/apis/{API}/namespaces/{quote(namespace, safe='')}/leases"
        self._one = f"{self._all}/{self._name}"
        self.where = f"Lease {namespace}/{self._name}"

    async def look(self) -> tuple[TenureRecord, str] | None:
        """As `TenureStore.look`."""
        status, data = await self._api.call("GET", self._one)
        if status == 404:
            return None
        return self._found("GET", status, data)

    async def write(self, record: TenureRecord, expect: str | None) -> str:
        """As `TenureStore.write`."""
        method, path = ("POST", self._all) if expect is None else ("PUT", self._one)
        status, data = await self._api.call(method, path, self._lease(record, expect))
        if status == 409 or (status == 404 and expect is not None):
            raise Conflict(f"{self.where} was changed by somebody else")
        return self._found(method, status, data)[1]

    def close(self) -> None:
        """Nothing is held open."""

    def _lease(self, record: TenureRecord, expect: str | None) -> dict[str, Any]:
        known = expect is not None and expect == self._last.metadata.resourceVersion
        before, raw = (self._last, self._raw) if known else (_Answer(), {})
        ours = {URL: record.url, GENERATION: str(record.generation), RENEWAL: str(record.renewal)}
        metadata = raw.get("metadata", {}) | {
            "name": self._name, "annotations": before.metadata.annotations | ours,
            "labels": before.metadata.labels | {"app.kubernetes.io/name": "p2pcache"},
        }  # fmt: skip
        if expect is not None:
            metadata["resourceVersion"] = expect
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = raw.get("spec", {}) | {
            "holderIdentity": record.holder, "renewTime": now,
            "leaseDurationSeconds": math.ceil(record.ttl_s),
        }  # fmt: skip
        if record.holder not in ("", before.spec.holderIdentity):
            spec["acquireTime"] = now
            spec["leaseTransitions"] = (before.spec.leaseTransitions or 0) + known
        return {"apiVersion": API, "kind": "Lease", "metadata": metadata, "spec": spec}

    def _found(self, method: str, status: int, data: bytes) -> tuple[TenureRecord, str]:
        try:
            answer = msgspec.json.decode(data, type=_Answer)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            answer = _Answer(message="and no JSON that makes sense")
            status = status if status >= 400 else 502
        if status not in (200, 201):
            text = f"{method} of {self.where}: HTTP {status} {answer.message}".strip()[:500]
            if status in (401, 403):
                raise NotAllowed(
                    f"{text}; the tracker's service account needs a Role that may get, create and update that Lease"
                )
            raise Unreachable(text) if status >= 500 or status == 429 else P2PCacheError(text)
        self._last, self._raw = answer, msgspec.json.decode(data)
        return self._record(answer), answer.metadata.resourceVersion

    def _record(self, lease: _Answer) -> TenureRecord:
        notes, spec = lease.metadata.annotations, lease.spec
        try:
            return checked(TenureRecord(
                spec.holderIdentity or "", notes.get(URL, ""), int(notes.get(GENERATION, "0")),
                int(notes.get(RENEWAL, "0")), float(spec.leaseDurationSeconds or 1),
            ))  # fmt: skip
        except (ValueError, IntegrityError) as error:
            raise IntegrityError(f"{self.where}: {error}; delete it") from None
