"""A real S3 server that fails as storages do: nothing is lost, and little is read twice."""

import io
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.kit.faultproxy import FaultProxy
from p2pcache.core.swarm.events import Outcome
from p2pcache.errors import OriginUnavailable
from p2pcache.io.models.model_chunks import ModelStore
from p2pcache.io.origins import OriginSettings, Retrying, open_origin
from p2pcache.io.origins.base import ABSENT
from p2pcache.io.origins.fetch import fetch_run
from p2pcache.io.origins.repo import OriginRepo, blob_key
from tests.io.models.store_kit import Model, open_store

Faulty = tuple[Retrying, FaultProxy]
SIZE = 2_000_000
DATA = random.Random(5).randbytes(SIZE)
BLOB = "p2pcache/v1/blobs/" + "ab" * 32


def read(origin: Retrying, start: int = 0, length: int = SIZE) -> bytes:
    buffer, found = memoryview(bytearray(100_000)), bytearray()
    with origin.open(BLOB, start, length) as body:
        while count := body.readinto(buffer):
            found += buffer[:count]
    return bytes(found)


def sent(proxy: FaultProxy, since: int = 0) -> int:
    return int(proxy.counters()["blob_bytes"]) - since


def test_busy_for_a_while(faulty: Faulty) -> None:
    origin, proxy = faulty
    origin.put(BLOB, DATA)
    proxy.fault("busy", seconds=1.0)
    began = time.monotonic()
    assert read(origin) == DATA
    assert time.monotonic() - began > 0.9
    proxy.fault("busy", times=2)
    assert origin.stat(BLOB) is not None
    proxy.fault("busy", times=2)
    origin.put("x", b"1", expect=ABSENT)
    proxy.fault("busy", times=2)
    assert [i.key for i in origin.list("x/")] == []


def test_busy_for_too_long(faulty: Faulty, s3_env: pytest.MonkeyPatch) -> None:
    origin, proxy = faulty
    impatient = open_origin(origin.url, OriginSettings(retry_for_s=0.5))
    proxy.fault("busy", seconds=60)
    began = time.monotonic()
    with pytest.raises(OriginUnavailable, match="503"):
        impatient.get("x", limit=1)
    assert time.monotonic() - began < 30
    impatient.close()


def test_truncated_bodies_are_asked_only_for_the_rest(faulty: Faulty) -> None:
    origin, proxy = faulty
    origin.put(BLOB, DATA)
    before = sent(proxy)
    proxy.fault("truncate", times=3)
    assert read(origin) == DATA
    assert sent(proxy, before) == SIZE


def test_resets(faulty: Faulty) -> None:
    origin, proxy = faulty
    origin.put(BLOB, DATA)
    before = sent(proxy)
    proxy.fault("reset", times=3)
    assert read(origin, 17, 1_500_000) == DATA[17:1_500_017]
    assert sent(proxy, before) < 3 * SIZE  # what was in flight is lost each time


def test_stalls(faulty: Faulty) -> None:
    origin, proxy = faulty
    origin.put(BLOB, DATA)
    proxy.fault("stall", times=1)
    began = time.monotonic()
    assert read(origin, 0, 1000) == DATA[:1000]
    assert 0.9 < time.monotonic() - began < 30
    proxy.fault("freeze", times=1)
    assert read(origin) == DATA


def test_small_reads_through_a_broken_connection(faulty: Faulty) -> None:
    origin, proxy = faulty
    origin.put(BLOB, DATA[:1000])
    proxy.fault("truncate", times=1)
    assert origin.get(BLOB, limit=1000)[0] == DATA[:1000]
    proxy.fault("reset", times=1)
    assert origin.get(BLOB, limit=1000)[0] == DATA[:1000]


def test_parts_of_an_upload_are_tried_again(faulty: Faulty) -> None:
    origin, proxy = faulty
    size = 11 << 20
    data = random.Random(6).randbytes(size)
    told: list[int] = []
    proxy.fault("busy", times=3)
    origin.put_file(BLOB, io.BytesIO(data), size, progress=told.append)
    assert sum(told) == size
    assert read(origin, 0, size) == data


def test_upload_that_fails_for_good_shows_nothing(faulty: Faulty) -> None:
    origin, proxy = faulty
    impatient = open_origin(origin.url, OriginSettings(retry_for_s=0.3, part_bytes=5 << 20))
    impatient.put("warm", b"")
    proxy.fault("busy", key="partNumber=2")
    with pytest.raises(OriginUnavailable):
        impatient.put_file(BLOB, io.BytesIO(bytes(11 << 20)), 11 << 20)
    proxy.clear()
    assert origin.stat(BLOB) is None
    inner = origin.inner
    pending = inner._client.list_multipart_uploads(Bucket=inner._bucket, Prefix=inner._prefix)  # type: ignore[attr-defined]
    assert pending.get("Uploads", []) == []
    impatient.close()


class Swarmlet:
    """One model behind the proxy and one cache."""

    def __init__(self, faulty: Faulty, tmp_path: Path) -> None:
        self.origin, self.proxy = faulty
        self.model = Model({"big": random.Random(8).randbytes(8 * 262_144)})
        self.repo = OriginRepo(self.origin)
        self.blob = self.model.layout.blobs[0].id
        self.origin.put(blob_key(self.blob), self.model.files["big"])
        self.store = open_store(tmp_path)
        self.target: ModelStore = self.model.add(self.store)

    def fetch(self, run: int) -> Outcome:
        return fetch_run(
            self.repo, self.model.layout, self.target, run, on_bytes=lambda count: None
        )


@pytest.fixture
def swarmlet(faulty: Faulty, tmp_path: Path) -> Iterator[Swarmlet]:
    made = Swarmlet(faulty, tmp_path)
    yield made
    made.store.close()


def test_runs_come_whole_through_every_fault(swarmlet: Swarmlet) -> None:
    before = sent(swarmlet.proxy)
    for kind in ("busy", "truncate", "reset", "freeze"):
        swarmlet.proxy.fault(kind, times=2)
        runs = range(swarmlet.model.layout.run_count)
        assert all(swarmlet.fetch(run) is Outcome.DONE for run in runs[:2])
    swarmlet.proxy.clear()
    assert all(swarmlet.fetch(run) is Outcome.DONE for run in range(8))
    swarmlet.model.assert_proved(swarmlet.target)
    assert sent(swarmlet.proxy, before) < 1.5 * swarmlet.model.layout.total_bytes


def test_corrupt_object(swarmlet: Swarmlet) -> None:
    before = sent(swarmlet.proxy)
    swarmlet.proxy.fault("corrupt", key=swarmlet.blob)
    assert swarmlet.fetch(3) is Outcome.MISMATCH
    assert sent(swarmlet.proxy, before) == 2 * 262_144
    swarmlet.proxy.clear()
    assert swarmlet.fetch(3) is Outcome.DONE


def test_outage_ends_as_unavailable(swarmlet: Swarmlet, s3_env: pytest.MonkeyPatch) -> None:
    impatient = open_origin(swarmlet.origin.url, OriginSettings(retry_for_s=0.3))
    swarmlet.repo = OriginRepo(impatient)
    swarmlet.proxy.fault("busy")
    assert swarmlet.fetch(0) is Outcome.UNAVAILABLE
    impatient.close()


def test_cancelled_during_an_outage(swarmlet: Swarmlet) -> None:
    swarmlet.proxy.fault("busy")
    until = time.monotonic() + 0.3
    outcome = fetch_run(
        swarmlet.repo, swarmlet.model.layout, swarmlet.target, 0,
        on_bytes=lambda count: None, cancelled=lambda: time.monotonic() > until,
    )  # fmt: skip
    assert outcome is Outcome.CANCELLED
    assert time.monotonic() - until < 20


def test_bytes_before_a_break_are_kept(faulty: Faulty) -> None:
    """With a buffer for everything, half of the body and then silence: half is asked again."""
    origin, proxy = faulty
    origin.put(BLOB, DATA)
    before = sent(proxy)
    proxy.fault("freeze", times=1)
    buffer, found = memoryview(bytearray(SIZE)), bytearray()
    with origin.open(BLOB, 0, SIZE) as body:
        while count := body.readinto(buffer[: SIZE - len(found)]):
            found += buffer[:count]
    assert bytes(found) == DATA
    assert sent(proxy, before) == SIZE
