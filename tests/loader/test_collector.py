"""The garbage collector rests while many objects are made that stay."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2pcache.errors import InvalidHeader
from p2pcache.loader.collector import no_collections
from p2pcache.loader.format.header import parse
from p2pcache.loader.source.catalog import open_catalog
from p2pcache.loader.source.deadline import Deadline
from p2pcache.loader.source.directory import DirectorySource
from tests.loader.loader_kit import Spec, write


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_rests_for_the_block_and_is_left_as_it_was() -> None:
    with no_collections(), no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with no_collections():
        pass
    assert not gc.isenabled()  # the program wishes so


def test_it_rests_while_headers_are_parsed_and_comes_back_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "m.safetensors", [Spec("a", "U8", (3,))])
    seen: list[bool] = []

    def watched(header: bytes, size: int, path: str) -> object:
        seen.append(gc.isenabled())
        return parse(header, size - 1 if len(seen) > 1 else size, path)

    monkeypatch.setattr("p2pcache.loader.source.catalog.parse", watched)
    source = DirectorySource(tmp_path)
    open_catalog(source, Deadline(None, "m"))
    with pytest.raises(InvalidHeader):
        open_catalog(source, Deadline(None, "m"))
    assert seen == [False, False]
    assert gc.isenabled()
