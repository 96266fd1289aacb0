"""Answers that botocore reads as a whole, errors above all: bounded, for anybody may answer in a storage's place."""

from collections.abc import Callable, Iterator
from typing import Any

from p2pcache.io.origins.s3.errors import NotStorage

# Bodies up to this size are sent without asking: that costs less than the round trip.
AT_ONCE_BYTES = 1 << 20
ANSWER_BYTES = 16 << 20  # a list of 1,000 keys of 1 KiB has some 5 MB when all of them are escaped


def sender(client: Any) -> Callable[..., Any]:
    """For botocore's event "before-send": sends a request, and bounds what is read of the answer as a whole.

    Args:
        client: the one that the event is of.
    """

    def send(request: Any, **_: object) -> Any:
        if int(request.headers.get("Content-Length", 0)) <= AT_ONCE_BYTES:
            request.headers.pop("Expect", None)
        whole = not request.stream_output
        request.stream_output = True  # else the session reads the whole before it returns
        answer = client._endpoint.http_session.send(request)  # noqa: SLF001 - botocore's own session
        if not whole and answer.status_code < 300:  # an object, which we read in pieces
            return answer
        stream = answer.raw.stream

        def bounded(*args: Any, **more: Any) -> Iterator[bytes]:
            size = 0
            try:
                for part in stream(*args, **more):
                    size += len(part)
                    if size > ANSWER_BYTES:
                        answer.raw.close()
                        raise NotStorage("more than any storage says")
                    yield part
            finally:
                del answer.raw.stream  # a circle, which would keep the connection

        answer.raw.stream = bounded
        return answer

    return send
