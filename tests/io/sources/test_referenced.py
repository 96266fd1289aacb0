"""What is said of a blob that none of its places gives."""

from collections.abc import Callable
from pathlib import Path

import pytest

from p2pcache.core.format.layout import Layout
from p2pcache.core.format.source_record import BlobPlace, make_record
from p2pcache.errors import NotAllowed, NotFound, OriginChanged, OriginUnavailable, P2PCacheError
from p2pcache.io.files.indexing import index_directory
from p2pcache.io.origins import open_origin
from p2pcache.io.origins.base import Body
from p2pcache.io.origins.repo import OriginRepo
from p2pcache.io.sources.referenced import SourcedReads
from p2pcache.io.sources.source import Sources

DOWN, REFUSED = OriginUnavailable("s0 is down"), NotAllowed("no source s0 here")
GONE, CHANGED = NotFound("no s1/k1"), OriginChanged("s1/k1 changed")


class Failing(SourcedReads):
    """Sources that all fail, the n-th place with the n-th error."""

    def __init__(self, errors: list[P2PCacheError]) -> None:
        super().__init__(Sources({}))
        self._errors = errors

    def open_place(
        self, place: BlobPlace, size: int, start: int, length: int, cancelled: Callable[[], bool]
    ) -> Body:
        raise self._errors[int(place.key)]


@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([DOWN, GONE], "s0 is down"),
        ([GONE, DOWN], "s0 is down"),
        ([REFUSED, GONE], "no source s0 here"),
        ([GONE, REFUSED], "no source s0 here"),
        ([GONE], "no s1/k1: it changed at the source; import it again"),
        ([GONE, GONE], "no s1/k1: it changed at the source; import it again"),
        ([GONE, CHANGED], "s1/k1 changed"),
        ([CHANGED, DOWN], "s0 is down"),
        ([DOWN, CHANGED], "s0 is down"),
        ([CHANGED, REFUSED], "no source s0 here"),
    ],
)
def test_a_place_that_lost_the_bytes_hides_no_place_that_may_have_them(
    tmp_path: Path, errors: list[P2PCacheError], told: str
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/a.bin").write_bytes(b"x" * 1000)
    (tmp_path / "origin").mkdir()
    layout = Layout(index_directory(tmp_path / "m")[0])
    (blob,) = layout.blobs
    repo = OriginRepo(open_origin((tmp_path / "origin").as_uri()))
    places = [BlobPlace(f"s{number}", str(number)) for number in range(len(errors))]
    repo.put_sources(layout.digest, make_record({blob.id: places}))
    body = Failing(errors).blobs(repo, layout).open_blob(blob.id, 0, 1000)
    with pytest.raises(P2PCacheError) as failed:
        body.readinto(memoryview(bytearray(1000)))
    assert str(failed.value) == told
    gone = told.startswith(("no s1", "s1"))
    assert isinstance(failed.value, OriginChanged) == gone
