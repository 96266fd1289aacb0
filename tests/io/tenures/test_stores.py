"""What every store of a tenure's record promises, and what each says when it can't."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from p2pcache.core.format.tenure_record import TenureRecord
from p2pcache.errors import (
    Conflict,
    IntegrityError,
    NotAllowed,
    P2PCacheError,
    Unreachable,
    UsageError,
)
from p2pcache.io.origins.file import FileOrigin
from p2pcache.io.tenures.in_kubernetes import KubernetesTenure
from p2pcache.io.tenures.in_origin import OriginTenure
from p2pcache.io.tenures.store import TenureStore
from tests.io.tenures.kube_leases import Leases

Open = Callable[[str], TenureStore]
FIRST = TenureRecord("a_1", "http://a:7400", 1_700_000_000, 1, 10.0)
SECOND = TenureRecord("b_2", "https://[fd00::2]:7400", 1_700_000_001, 1, 10.0)
GIVEN_BACK = TenureRecord("", "", 1_700_000_001, 2, 10.0)


async def test_a_record_is_made_once_and_changed_by_comparison(open_store: Open) -> None:
    one, other = open_store("p2pcache-tracker"), open_store("p2pcache-tracker")
    assert await one.look() is None
    first = await one.write(FIRST, None)
    assert await other.look() == (FIRST, first)
    with pytest.raises(Conflict):
        await other.write(SECOND, None)
    second = await other.write(SECOND, first)
    assert second != first
    with pytest.raises(Conflict):
        await one.write(FIRST, first)
    assert await one.look() == (SECOND, second)
    third = await other.write(GIVEN_BACK, second)
    assert await one.look() == (GIVEN_BACK, third)
    one.close()
    other.close()


async def test_of_many_who_write_at_once_one_wins(open_store: Open) -> None:
    stores = [open_store("p2pcache-tracker") for _ in range(6)]
    version = await stores[0].write(FIRST, None)
    records = [TenureRecord(f"h{n}", "http://h:7400", 2, 1, 10.0) for n in range(6)]
    ends = await asyncio.gather(
        *(s.write(r, version) for s, r in zip(stores, records, strict=True)), return_exceptions=True
    )
    winners = [n for n, end in enumerate(ends) if isinstance(end, str)]
    assert len(winners) == 1
    assert all(isinstance(end, str | Conflict) for end in ends), ends
    found = await stores[0].look()
    assert found == (records[winners[0]], ends[winners[0]])
    for store in stores:
        store.close()


async def test_names_tell_clusters_apart(open_store: Open) -> None:
    one, other = open_store("a"), open_store("b")
    await one.write(FIRST, None)
    assert await other.look() is None
    for name in ("", "../x", "A", "a/b", "a" * 80):
        with pytest.raises(UsageError, match="lease"):
            open_store(name)
    one.close()
    other.close()


# -- the origin ------------------------------------------------------------------------------------


async def test_storage_without_conditional_writes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileOrigin, "conditional_put", property(lambda _: False))
    store = OriginTenure(tmp_path.as_uri(), "x")
    with pytest.raises(UsageError, match="--lease kubernetes"):
        await store.look()
    with pytest.raises(UsageError, match="conditional writes"):
        await store.write(FIRST, None)


async def test_an_origin_that_is_gone_is_trouble_and_no_missing_record(tmp_path: Path) -> None:
    store = OriginTenure((tmp_path / "gone").as_uri(), "x")
    with pytest.raises(P2PCacheError):
        await store.look()
    (tmp_path / "gone").mkdir()
    assert await store.look() is None
    (tmp_path / "gone").rmdir()
    with pytest.raises(P2PCacheError):
        await store.look()


async def test_bytes_that_are_no_record_say_what_to_delete(tmp_path: Path) -> None:
    store = OriginTenure(tmp_path.as_uri(), "x")
    await store.write(FIRST, None)
    path = tmp_path / "p2pcache/v1/trackers/x"
    for bad in (b"{", b"x" * 5000):
        path.write_bytes(bad)
        with pytest.raises(IntegrityError, match="trackers/x"):
            await store.look()


async def test_a_write_that_hangs_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    store = OriginTenure(tmp_path.as_uri(), "x")
    monkeypatch.setattr("p2pcache.io.tenures.in_origin.CALL_S", 0.1)
    monkeypatch.setattr(FileOrigin, "put", lambda *_args, **_more: let_go.wait(30) and "v")
    with pytest.raises(P2PCacheError, match="no answer"):
        await store.write(FIRST, None)
    let_go.set()


# -- Kubernetes ------------------------------------------------------------------------------------


async def test_kubectl_shows_the_holder(kube: Leases) -> None:
    store = KubernetesTenure(kube.api(), "p2pcache-tracker")
    await store.write(FIRST, None)
    lease = kube.objects["p2pcache-tracker"]
    assert lease["spec"]["holderIdentity"] == "a_1"
    assert lease["spec"]["leaseDurationSeconds"] == 10
    assert store.where == "Lease models/p2pcache-tracker"


async def test_the_times_and_the_transitions_are_as_client_go_writes_them(kube: Leases) -> None:
    def spec() -> dict[str, Any]:
        return dict(kube.objects["x"]["spec"])

    one, other = (KubernetesTenure(kube.api(), "x") for _ in range(2))
    version = await one.write(FIRST, None)
    first = spec()
    assert first["leaseTransitions"] == 0
    assert first["acquireTime"] == first["renewTime"]
    version = await one.write(msgspec.structs.replace(FIRST, renewal=2), version)
    renewed = spec()
    assert (renewed["leaseTransitions"], renewed["acquireTime"]) == (0, first["acquireTime"])
    assert renewed["renewTime"] > first["renewTime"]
    found = await other.look()
    assert found is not None
    version = await other.write(SECOND, found[1])
    assert spec()["leaseTransitions"] == 1
    assert spec()["acquireTime"] > first["acquireTime"]
    version = await other.write(GIVEN_BACK, version)
    assert (spec()["holderIdentity"], spec()["leaseTransitions"]) == ("", 1)
    found = await one.look()
    assert found is not None
    await one.write(msgspec.structs.replace(FIRST, generation=1_700_000_002), found[1])
    assert spec()["leaseTransitions"] == 2


async def test_what_others_wrote_into_the_lease_stays(kube: Leases) -> None:
    store = KubernetesTenure(kube.api(), "x")
    await store.write(FIRST, None)
    lease = kube.objects["x"]
    lease["metadata"]["labels"]["team"] = "a"
    lease["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] = "t"
    lease["metadata"]["ownerReferences"] = owners = [{"kind": "Deployment", "name": "d"}]
    lease["spec"]["strategy"] = "OldestEmulationVersion"
    lease["metadata"]["resourceVersion"] = "900"
    with pytest.raises(Conflict):
        await store.write(SECOND, "42")
    assert await store.look() == (FIRST, "900")
    await store.write(SECOND, "900")
    lease = kube.objects["x"]
    assert lease["metadata"]["labels"] == {"app.kubernetes.io/name": "p2pcache", "team": "a"}
    assert lease["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"] == "t"
    assert lease["metadata"]["ownerReferences"] == owners
    assert lease["spec"]["strategy"] == "OldestEmulationVersion"


async def test_a_lease_that_somebody_deleted_is_a_conflict(kube: Leases) -> None:
    store = KubernetesTenure(kube.api(), "x")
    version = await store.write(FIRST, None)
    del kube.objects["x"]
    with pytest.raises(Conflict):
        await store.write(SECOND, version)
    assert await store.look() is None


@pytest.mark.parametrize(("code", "text", "kind"), [
    (403, '{"message": "forbidden"}', NotAllowed), (401, "{}", NotAllowed), (500, "boom", Unreachable),
    (429, "{}", Unreachable), (422, '{"message": "invalid"}', P2PCacheError), (200, "no JSON", Unreachable),
    (200, "[" * 100_000, Unreachable),
    (200, '{"metadata": {"annotations": {"p2pcache.io/renewal": "x"}}}', IntegrityError),
])  # fmt: skip
async def test_an_api_server_that_refuses(
    kube: Leases, code: int, text: str, kind: type[P2PCacheError]
) -> None:
    store = KubernetesTenure(kube.api(), "x")
    kube.failure = (code, text)
    with pytest.raises(kind) as error:
        await store.look()
    assert not isinstance(error.value, Conflict)


async def test_a_forbidden_lease_names_the_remedy(kube: Leases) -> None:
    kube.failure = (403, '{"message": "forbidden"}')
    with pytest.raises(NotAllowed, match="Role"):
        await KubernetesTenure(kube.api(), "x").write(FIRST, None)


async def test_an_api_server_that_is_gone_is_unreachable(kube: Leases) -> None:
    kube.url = "https://127.0.0.1:1"
    store = KubernetesTenure(kube.api(call_s=0.2), "x")
    with pytest.raises(Unreachable, match="API server"):
        await store.look()


async def test_a_foreign_lease_is_respected_for_its_time(kube: Leases) -> None:
    kube.objects["x"] = {
        "metadata": {"name": "x", "resourceVersion": "7"},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 15},
    }
    found = await KubernetesTenure(kube.api(), "x").look()
    assert found == (TenureRecord("somebody", "", 0, 0, 15.0), "7")
