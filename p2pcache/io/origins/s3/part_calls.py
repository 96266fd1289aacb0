"""The calls that upload one object, and the sums by which the storage proves its bytes.

Over TLS the channel proves them. Over plain HTTP a CRC-32 shows damage where the storage looks at it, for less than
half of the processor time of a signature's SHA-256; it stops nobody who changes bytes on purpose. Elsewhere the hash is
signed, for storage that compares it with the bytes (`client.py`).
"""

import base64
import zlib
from collections.abc import Callable
from typing import Any

from p2pcache.io.origins.multipart import Calls
from p2pcache.io.origins.s3.part_body import PartBody

SUM_HEADER = "x-amz-checksum-crc32"


class PartCalls(Calls):
    """The calls for one key."""

    def __init__(
        self, call: Callable[..., dict[str, Any]], size: Callable[[], int | None], *, summed: bool
    ) -> None:
        """Send nothing yet.

        Args:
            call: does an operation of botocore's for the key.
            size: of the object as it is now.
            summed: send sums, since the storage proves them.
        """
        self._call = call
        self._stored = size
        self._summed = summed
        self._sums: dict[int, str] = {}  # by part

    def whole(self, data: bytearray) -> None:
        """Put the object in one piece."""
        self._call("put_object", Body=PartBody(data), **(_sum(data) if self._summed else {}))

    def create(self) -> str:
        """Begin an upload; returns its id."""
        named = {"ChecksumAlgorithm": "CRC32"} if self._summed else {}
        return str(self._call("create_multipart_upload", **named)["UploadId"])

    def part(self, upload: str, number: int, data: bytearray) -> str:
        """Send part `number` (from 1); returns its tag."""
        proof = {}
        if self._summed:
            proof = _sum(data)
            self._sums[number] = proof["ChecksumCRC32"]
        answer = self._call(
            "upload_part", UploadId=upload, PartNumber=number, Body=PartBody(data), **proof
        )
        return str(answer["ETag"])

    def complete(self, upload: str, tags: dict[int, str]) -> None:
        """Make the object of its parts."""
        parts: list[dict[str, object]] = []
        for number, tag in sorted(tags.items()):
            proof = {"ChecksumCRC32": self._sums[number]} if self._summed else {}
            parts.append({"PartNumber": number, "ETag": tag, **proof})
        self._call("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts})

    def abort(self, upload: str) -> None:
        """Throw the parts away."""
        self._call("abort_multipart_upload", UploadId=upload)

    def size(self) -> int | None:
        """Size of the object as it is now."""
        return self._stored()


def crc32_of(data: bytes | bytearray) -> str:
    """The sum of an object or a part, as S3 writes it."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def _sum(data: bytearray) -> dict[str, str]:
    return {"ChecksumCRC32": crc32_of(data)}
