"""Sources under test: each entry of SOURCES passes the conformance suite."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from loadtest.kit import clouds
from loadtest.kit.cluster import free_ports
from loadtest.kit.nginx import nginx, nginx_program
from loadtest.kit.registry import registry
from loadtest.kit.seaweed import Seaweed
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.origins.conftest import _one_loader, clean_env, s3_env, seaweed  # noqa: F401 - fixtures
from tests.io.sources.cloud_kit import KEY
from tests.io.sources.kit import Hub, Web, serving
from tests.io.sources.registry_kit import HAVE_REGISTRY, pack


class Filled(NamedTuple):
    """A source that holds a model, and how a test changes it."""

    source: Source
    place: str
    write: Callable[[str, bytes], None]  # a file of the model
    changes: bool = True  # whether a key's bytes can change
    grain_s: float = 0.0  # of the clock in its validators


@contextmanager
def _file(request: pytest.FixtureRequest) -> Iterator[Filled]:
    root: Path = request.getfixturevalue("tmp_path") / "lake here"

    def write(name: str, data: bytes) -> None:
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_bytes(data)

    root.mkdir()
    yield Filled(Source("s", SourceSettings(url=root.as_uri())), "m", write)


@contextmanager
def _s3(request: pytest.FixtureRequest) -> Iterator[Filled]:
    import botocore.session

    request.getfixturevalue("s3_env")
    server: Seaweed = request.getfixturevalue("seaweed")
    url = server.url(prefix=f"lake here/{secrets.token_hex(6)}")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    made = botocore.session.Session().create_client("s3", region_name="us-east-1")
    source = Source("s", SourceSettings(url=url))
    yield Filled(
        source, "m", lambda name, data: made.put_object(Bucket=bucket, Key=f"{prefix}/m/{name}", Body=data)
    )  # fmt: skip
    source.close()
    made.close()


@contextmanager
def _nginx(request: pytest.FixtureRequest) -> Iterator[Filled]:
    if nginx_program() is None:
        pytest.skip("needs nginx")
    tmp: Path = request.getfixturevalue("tmp_path")
    root = tmp / "www"
    (root / "m").mkdir(parents=True)

    def write(name: str, data: bytes) -> None:
        (root / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "m" / name).write_bytes(data)

    (port,) = free_ports(1)
    with nginx(
        tmp / "nginx", root, port, index="json" if request.param == "nginx-json" else "html"
    ):
        source = Source("s", SourceSettings(url=f"http://127.0.0.1:{port}/"))
        yield Filled(source, "m", write, grain_s=1.1)
        source.close()


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real emulator of Azure's blobs for all tests."""
    if clouds.azurite_program() is None:
        pytest.skip("needs azurite (make azurite)")
    with clouds.azurite(tmp_path_factory.mktemp("azurite")) as endpoint:
        yield endpoint


@contextmanager
def _azurite(request: pytest.FixtureRequest) -> Iterator[Filled]:
    endpoint: str = request.getfixturevalue("azure_endpoint")
    patch: pytest.MonkeyPatch = request.getfixturevalue("clean_env")
    for name, value in clouds.AZURE_ENV.items():
        patch.setenv(name, value)
    container = f"c{secrets.token_hex(6)}"
    clouds.make_container(endpoint, container)
    source = Source("s", SourceSettings(url=f"az://{container}/lake here", endpoint=endpoint))
    yield Filled(
        source, "m", lambda name, data: clouds.put_blob(endpoint, container, f"lake here/m/{name}", data)
    )  # fmt: skip
    source.close()


@pytest.fixture(scope="session")
def google_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real emulator of Google's objects for all tests."""
    if clouds.fake_gcs_program() is None:
        pytest.skip("needs fake-gcs-server (it has a wheel for x86-64 and arm64)")
    with clouds.fake_gcs(tmp_path_factory.mktemp("gcs")) as endpoint:
        yield endpoint


@contextmanager
def _gcs(request: pytest.FixtureRequest) -> Iterator[Filled]:
    endpoint: str = request.getfixturevalue("google_endpoint")
    patch: pytest.MonkeyPatch = request.getfixturevalue("clean_env")
    patch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    bucket = f"b{secrets.token_hex(6)}"
    clouds.make_bucket(endpoint, bucket)
    source = Source("s", SourceSettings(url=f"gs://{bucket}/lake here"))
    yield Filled(
        source, "m", lambda name, data: clouds.put_object(endpoint, bucket, f"lake here/m/{name}", data)
    )  # fmt: skip
    source.close()


@contextmanager
def _hub(request: pytest.FixtureRequest) -> Iterator[Filled]:
    patch: pytest.MonkeyPatch = request.getfixturevalue("clean_env")
    patch.setenv("HF_HOME", str(request.getfixturevalue("tmp_path")))
    with serving(Web()) as cdn, serving(Hub(cdn)) as hub:
        assert isinstance(hub, Hub)

        def write(name: str, data: bytes) -> None:
            hub.repo[name] = data
            if len(data) > 1000:
                hub.lfs.add(name)

        settings = SourceSettings(url="hf://", endpoint=hub.url, private=True)
        source = Source("s", settings)
        yield Filled(source, "org/model", write, changes=False)
        source.close()


@contextmanager
def _oci(request: pytest.FixtureRequest) -> Iterator[Filled]:
    if not HAVE_REGISTRY:
        pytest.skip("needs docker-registry and skopeo (make tools)")
    tmp: Path = request.getfixturevalue("tmp_path")
    files: dict[str, bytes] = {}

    def write(name: str, data: bytes) -> None:
        files[name] = data
        running.push(pack(tmp / f"packed-{len(files)}", files), "acme/m:latest")

    with registry(tmp) as running:
        source = Source("s", SourceSettings(url=f"oci://{running.address}/acme"))
        yield Filled(source, "m", write, changes=False)
        source.close()


SOURCES: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Filled]]] = {
    "file": _file, "s3": _s3, "nginx-html": _nginx, "nginx-json": _nginx, "hub": _hub,
    "azurite": _azurite, "gcs": _gcs,
    "oci": _oci,
}  # fmt: skip


@pytest.fixture(params=list(SOURCES))
def filled(request: pytest.FixtureRequest) -> Iterator[Filled]:
    """An empty place of each kind of source."""
    with SOURCES[request.param](request) as opened:
        yield opened


@pytest.fixture
def cloud_env(clean_env: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: F811
    """Credentials of three clouds, and none of this machine's."""
    clean_env.setenv("HOME", str(tmp_path))  # no credentials of gcloud, az or netrc
    clean_env.setenv("NO_GCE_CHECK", "true")
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY"):
        clean_env.setenv(f"AZURE_STORAGE_{name}", {"ACCOUNT_KEY": KEY}.get(name, "acme"))
    clean_env.setenv("AWS_ACCESS_KEY_ID", "AKIA0000000000000000")
    clean_env.setenv("AWS_SECRET_ACCESS_KEY", "s" * 40)
    clean_env.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture
def web() -> Iterator[Web]:
    with serving(Web()) as one:
        yield one
