"""Stores of a tenure's record: a directory, SeaweedFS, and Kubernetes' API server in small."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from loadtest.kit.seaweed import Seaweed
from p2pcache.io.tenures.in_kubernetes import KubernetesTenure
from p2pcache.io.tenures.in_origin import OriginTenure
from p2pcache.io.tenures.store import TenureStore
from tests.io.tenures.kube_leases import Leases, account, leases


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no trouble of the store's."""
    monkeypatch.setattr("p2pcache.io.tenures.in_origin.CALL_S", 30.0)


@pytest.fixture(scope="session")
def service_account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return account(tmp_path_factory.mktemp("account"))


@pytest.fixture
async def kube(service_account: Path) -> AsyncIterator[Leases]:
    async with leases(service_account) as running:
        yield running


@pytest.fixture
def s3_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with Seaweed(tmp_path / "s3", nice=5) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        yield server.url(prefix="t/tenure")


@pytest.fixture(params=["file", "s3", "kubernetes"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], TenureStore]:
    """Opens one more client of the same store; its argument is the record's name."""
    if request.param == "kubernetes":
        kube: Leases = request.getfixturevalue("kube")
        return lambda name: KubernetesTenure(kube.api(), name)
    if request.param == "s3":
        url: str = request.getfixturevalue("s3_url")
        return lambda name: OriginTenure(url, name)
    folder = tmp_path / "origin"
    folder.mkdir()
    return lambda name: OriginTenure(folder.as_uri(), name)
