"""The body of a part does for botocore what a file would do, without copies."""

import io

from botocore.utils import determine_content_length

from p2pcache.io.origins.s3.part_body import PartBody


def test_reads_like_a_file() -> None:
    data = bytearray(range(200))
    body, file = PartBody(data), io.BytesIO(data)
    for size in (0, 7, 150, 150, 1):
        assert bytes(body.read(size)) == file.read(size)
        assert body.tell() == file.tell()
    for offset, whence in ((0, 0), (5, 0), (-3, 2), (500, 0), (0, 2)):
        body.seek(offset, whence)
        file.seek(min(offset, 200) if not whence else offset, whence)
        assert bytes(body.read()) == file.read()


def test_a_request_that_is_sent_again_has_all_of_it() -> None:
    body = PartBody(bytearray(b"part"))
    assert determine_content_length(body) == 4
    assert bytes(body.read(100)) == b"part"
    assert determine_content_length(body) == 4
    body.seek(0)
    assert bytes(body.read(100)) == b"part"
    assert not body.read(100)


def test_copies_nothing() -> None:
    data = bytearray(b"old.")
    piece = PartBody(data).read(4)
    data[:] = b"new."
    assert bytes(piece) == b"new."
