"""Stores of clouds that lie, redirect or refuse."""

import pytest

from p2pcache.errors import P2PCacheError, UsageError
from p2pcache.io.sources.base import SourceFile
from p2pcache.io.sources.settings import SourceSettings
from p2pcache.io.sources.source import Source
from tests.io.sources.cloud_kit import STORES, Entry, Store, source_of
from tests.io.sources.kit import Answer, Web, serving
from tests.io.sources.test_conformance import read

pytestmark = pytest.mark.usefixtures("cloud_env")


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest) -> Store:
    """Each kind of store."""
    return STORES[request.param]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_store_leads_into_this_host(store: Store, web: Web, status: int) -> None:
    with serving(Web()) as inside:
        inside.files["/secret"] = b"s" * 1000
        for place in (f"{inside.url}/secret", "http://169.254.169.254/latest/meta-data/"):
            more = {"Location": place, "x-amz-bucket-region": "eu-west-1"}
            web.spoil = lambda _path, _headers, more=more: (status, more, b"")  # type: ignore[misc]
            source = source_of(store.url, web.url)
            with pytest.raises(P2PCacheError):
                source.files("m")
            with pytest.raises(P2PCacheError):
                read(source, SourceFile("a", "m/a", 1000, store.validator))
            source.close()
        assert not inside.seen


@pytest.mark.parametrize(
    "entry",
    [
        ("m/../x", 1), ("m//etc/passwd", 1), ("m/a\x7fb", 1), ("m/" + "x" * 2000, 1), ("m/b", -1), ("m/b", "many"),
        ("m/config.json", 2), ("m/" + "d/" * 600 + "x", 1), ("m/..", 1), ("m/a\\b", 1), ("m/./b", 1),
    ],
)  # fmt: skip
def test_names_and_sizes_that_cannot_be(store: Store, web: Web, entry: Entry) -> None:
    listed = store.listing([("m/config.json", 2), entry], "")
    web.spoil = lambda path, _: listed if store.asks_for_list(path) else (404, {}, b"")
    source = source_of(store.url, web.url)
    with pytest.raises(P2PCacheError) as caught:
        source.files("m")
    assert caught.value.exit_code in (2, 6), caught.value
    source.close()


def test_a_name_beside_the_prefix_is_none_of_the_models(store: Store, web: Web) -> None:
    web.spoil = lambda path, _: (
        store.listing([("other/secret", 9)], "") if store.asks_for_list(path) else None
    )
    source = source_of(store.url + "/lake", web.url)
    found = source.files("m")
    # Whatever it is called, its key lies below the prefix that the operator named.
    assert all(file.key.startswith("m/") for file in found)
    source.close()


def test_lists_that_do_not_end(store: Store, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pcache.io.sources.base.MAX_FILES", 1000)
    pages = iter(range(1_000_000))

    def page(path: str, _: dict[str, str]) -> Answer | None:
        number = next(pages)
        return store.listing([(f"m/f{number}-{n}", 1) for n in range(150)], f"t{number}")

    web.spoil = page
    source = source_of(store.url, web.url)
    with pytest.raises(UsageError, match="more than 1,000 files"):
        source.files("m")
    assert next(pages) <= 9
    source.close()


@pytest.mark.parametrize("body", [b"", b"[" * 2_000_000, b"<a>" * 1000, b"{}[", b"\xff", b"hello"])
def test_lists_that_are_none(store: Store, web: Web, body: bytes) -> None:
    web.spoil = lambda path, _: (200, {}, body) if store.asks_for_list(path) else None
    source = source_of(store.url, web.url)
    with pytest.raises(P2PCacheError):
        source.files("m")
    source.close()


def test_bytes_that_are_not_those_that_were_asked_for(store: Store, web: Web) -> None:
    whole = b"a" * 1000
    source = source_of(store.url, web.url)
    file = SourceFile("a", "m/a", 1000, store.validator)
    other = {name: value.replace("7", "8") for name, value in store.tag.items()}
    for answer in (
        (200, store.tag, whole),
        (206, {**store.tag, "Content-Range": "bytes 0-9/1000"}, whole[:9]),
        (206, {**other, "Content-Range": "bytes 10-19/1000"}, whole[:10]),
        (206, {"Content-Range": "bytes 10-19/1000"}, whole[:10]),
        (412, {}, b""), (403, {}, b"<Error><Code>AccessDenied</Code></Error>"), (500, {}, b""), (404, {}, b""),
    ):  # fmt: skip
        web.spoil = lambda _path, _headers, answer=answer: answer  # type: ignore[misc]
        with pytest.raises(P2PCacheError):
            read(source, file, 10, 10)
    source.close()


def test_a_body_that_stops_is_gone_on_with(store: Store, web: Web) -> None:
    """A server that breaks off is asked for the rest, and not for more."""
    data, asked = bytes(range(250)) * 4, []

    def half(_: str, headers: dict[str, str]) -> Answer:
        asked.append(headers["range"])
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        more = {**store.tag, "Content-Range": f"bytes {first}-{last}/1000"}
        body = data[first : last + 1]
        if len(asked) == 1:
            more["Content-Length"], body = str(len(body)), body[:400]
            more["Connection"] = "close"
        return 206, more, body

    web.spoil = half
    source = Source("s", SourceSettings(url=store.url, endpoint=web.url))
    assert read(source, SourceFile("a", "m/a", 1000, store.validator)) == data
    assert asked == ["bytes=0-999", "bytes=400-999"]
    source.close()
