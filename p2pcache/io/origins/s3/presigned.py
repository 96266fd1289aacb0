"""Ranged reads by a URL that botocore signed once for an object, so that no request costs a signature of its own.

A presigned URL is a secret: whoever has it may read the object. It stays in here, and no error or log line quotes it.
Credentials, regions and refusals stay botocore's business: it asks for the first object first, and for each whose URL
is refused or grows old. Other objects are asked for by URLs at once, until the storage refuses one: many are read once
only.
"""

import re
import threading
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError

from p2pcache.io.origins.s3.errors import refuse_strangers

# A signature in a header is good for as long: the server's clock and ours may differ by this.
SIGNED_FOR_S = 900
# Shorter than SIGNED_FOR_S, and keys from a role are renewed minutes before they expire.
USED_FOR_S = 300.0
KEPT = 1024  # URLs of about a kilobyte
# Refusals in a row after which this storage takes no URLs. One counts once botocore has read that object without
# trouble: of a missing or forbidden one it says nothing about URLs.
REFUSALS = 3
_BUSY = (408, 429, 500, 502, 503, 504)
_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,80})</Code>")
_ERROR_BYTES = 4096  # of an answer that says why; its code comes early


class _Signed(NamedTuple):
    url: str
    client: Any  # whose credentials signed it
    until: float


class Presigned:
    """The URLs of one bucket's objects. Thread-safe."""

    def __init__(self, bucket: str) -> None:
        """No object is known yet."""
        self._bucket = bucket
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Signed] = OrderedDict()
        self._refused = 0  # refusals in a row
        # Objects refused by URL, and the thread that was: botocore's answer to it isn't there yet.
        self._doubted: dict[str, int] = {}
        # The client by whose URLs other objects are asked for at once; None: botocore asks first.
        self._trusted: Any = None

    def learn(self, client: Any, key: str) -> None:
        """Sign a URL for an object that botocore has just read without trouble."""
        with self._lock:
            if self._doubted.pop(key, None) is not None:
                self._refused += 1
            if self._refused >= REFUSALS or key in self._known:
                return
            if not self._refused:
                self._trusted = client
        self._sign(client, key)

    def _sign(self, client: Any, key: str) -> _Signed:
        url = client.generate_presigned_url(
            "get_object", {"Bucket": self._bucket, "Key": key}, ExpiresIn=SIGNED_FOR_S
        )
        signed = _Signed(url, client, time.monotonic() + USED_FOR_S)
        with self._lock:
            self._known[key] = signed
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return signed

    def get(self, client: Any, key: str, start: int, length: int) -> Any:
        """The answer to a ranged GET, its body unread; None: botocore has to ask.

        Raises:
            ClientError: the storage is busy.
            FOREIGN: as botocore has it.
        """
        with self._lock:
            # Botocore was refused, too: the object was missing. The doubts of other reads, which run, stay.
            if self._doubted.get(key) == threading.get_ident():
                del self._doubted[key]
            signed, trusted = self._known.get(key), self._trusted
        if signed is None:
            if trusted is not client:
                return None
            signed = self._sign(client, key)
        if signed.client is not client or time.monotonic() > signed.until:
            self._forget(key)
            return None
        request = AWSRequest(
            "GET", signed.url, {"Range": f"bytes={start}-{start + length - 1}"}, stream_output=True
        )
        # botocore's own session: its certificates, proxies, timeouts and pooled connections
        answer = client._endpoint.http_session.send(request.prepare())  # noqa: SLF001
        status = int(answer.status_code)
        if status in (200, 206):
            refuse_strangers({"status_code": status, "headers": answer.headers, "body": answer.raw})
            with self._lock:
                self._refused, self._trusted = 0, client
            return answer
        said = answer.raw.read(_ERROR_BYTES)
        answer.raw.close()
        if status in _BUSY:
            raise _busy(status, said)
        self._forget(key)
        with self._lock:
            if len(self._doubted) >= KEPT:
                self._doubted.popitem()
            self._doubted[key] = threading.get_ident()
            self._trusted = None
        return None

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)


def _busy(status: int, said: bytes) -> ClientError:
    """The error that botocore would have made of an answer."""
    found = _CODE.search(said)
    code = found[1].decode() if found else str(status)
    return ClientError(
        {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "GetObject",
    )
