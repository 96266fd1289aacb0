"""Byte ranges of a file in chunks and runs."""

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.loader.source.chunk_map import BufferCursor, ChunkMap
from tests.io.models.store_kit import Model

SIZE = 5000
MODEL = Model({"a": bytes(range(250)) * 20, "b": bytes(range(249, -1, -1)) * 8}, 700)


@given(st.integers(0, SIZE), st.integers(0, SIZE))
def test_parts_are_the_range_in_order(one: int, other: int) -> None:
    start, end = sorted((one, other))
    number = MODEL.layout.blob_of_file["a"]
    parts = ChunkMap(MODEL.layout).parts(number, start, end)
    joined = b"".join(
        MODEL.chunk(p.chunk)[p.offset : p.offset + p.length] for p in parts
    )  # fmt: skip
    assert joined == MODEL.files["a"][start:end]
    runs = ChunkMap(MODEL.layout).runs(number, start, end)
    assert list(runs) == sorted({p.run for p in parts})


@given(st.lists(st.integers(0, 40), max_size=8), st.data())
def test_buffers_are_filled_in_order(sizes: list[int], data: st.DataObject) -> None:
    memory = [bytearray(size) for size in sizes]
    buffers = BufferCursor([memoryview(m) for m in memory])
    left, value = sum(sizes), 0
    while left:
        take = data.draw(st.integers(1, left))
        views = buffers.take(take)
        assert sum(map(len, views)) == take
        for view in views:
            for i in range(len(view)):
                view[i] = value % 251
                value += 1
        left -= take
    assert b"".join(memory) == bytes(i % 251 for i in range(sum(sizes)))
