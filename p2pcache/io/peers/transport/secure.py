"""TLS 1.3 over a non-blocking socket, for one thread that receives beside one that sends.

An OpenSSL connection may not be used by two threads at once. So it works on memory only
(`ssl.MemoryBIO`), under a lock that is held while bytes are en- or decrypted and never while the
socket is used: a sender that waits for the network doesn't block the receiver.
"""

import os
import socket
import ssl
import threading
from typing import Any

from p2pcache.core.protocol.certificate_identity import Member
from p2pcache.io.peers.transport.channel import Bytes
from p2pcache.io.peers.transport.workers import SlicePool
from p2pcache.io.security.tls import explain

RECORD_BYTES = 16384 + 256 + 5  # RFC 8446: plaintext, what encryption may add, header
READ_BYTES = 256 << 10  # ciphertext taken from the kernel at once
BATCH_BYTES = 128 << 10  # encrypted at once; OpenSSL keeps a buffer of that size per connection

# Ciphertext on its way in, plaintext of files on its way out: one buffer for each of 12 upload threads and 4
# receiving ones.
_scratch = SlicePool(16, READ_BYTES)


class Secure:
    """A TLS connection (see `channel.Channel`). `shake` until the handshake is over, then use it.

    Invariant outside of `receive`: OpenSSL holds less than one record of received bytes, so
    nothing that could be handed on waits where epoll can't see it.
    """

    hidden = RECORD_BYTES
    short_is_empty = False  # the payload of records is shorter than their ciphertext

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_side: bool) -> None:
        """Take over a connected non-blocking socket; nothing is sent yet."""
        self.sock = sock
        self.member: Member | None = None  # set once the certificate is checked
        self.spoke = False  # the other side has sent something
        self.port_scan = False  # the other side hung up without a byte
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        self._lock = threading.Lock()  # over `_tls`, `_in` and `_out`
        self._unsent = memoryview(b"")  # ciphertext half sent; belongs to the sender

    # -- the handshake ---------------------------------------------------------------------------

    def shake(self) -> bool:
        """One step with the bytes that have come; True when it is over (then `flush` until all is sent).

        Raises:
            OSError: it failed; an alert for the other side may wait for `flush`.
        """
        try:
            data = self.sock.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the peer closed the connection in the TLS handshake")
            self.spoke = True
            self._in.write(data)
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self.port_scan = not self.spoke
            raise
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def certificate(self) -> dict[str, Any] | None:
        """The verified certificate of the other side (after the handshake)."""
        return self._tls.getpeercert()

    # -- the channel -----------------------------------------------------------------------------

    def receive(self, view: memoryview, want: int) -> int:
        """See `channel.Channel`; may bring one record more than wanted."""
        size = min(max(want, RECORD_BYTES), READ_BYTES, len(view) - RECORD_BYTES)
        count = 0
        raw = _scratch.take()
        try:
            while not count:
                got = self.sock.recv_into(raw.view, size)
                if not got:
                    raise ConnectionResetError("the peer closed the connection")
                with self._lock:
                    self._in.write(raw.view[:got])
                    count = self._decrypt(view)
        finally:
            raw.release()
        return count

    def send(self, data: Bytes, *, more: bool = False) -> int:
        """See `channel.Channel`."""
        if self._unsent and not self.flush():
            raise BlockingIOError
        count = self._encrypt(memoryview(data)[:BATCH_BYTES])
        if not more:
            self.flush()
        return count

    def send_file(self, fd: int, at: int, count: int) -> int:
        """See `channel.Channel`."""
        if self._unsent and not self.flush():
            raise BlockingIOError
        plain = _scratch.take()
        try:
            got = os.preadv(fd, [plain.view[: min(count, BATCH_BYTES)]], at)
            self._encrypt(plain.view[:got])
        finally:
            plain.release()
        self.flush()
        return got

    def flush(self) -> bool:
        """See `channel.Channel`."""
        while True:
            if not self._unsent:
                with self._lock:
                    self._unsent = memoryview(self._out.read())
                if not self._unsent:
                    return True
            try:
                sent = self.sock.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]

    def _decrypt(self, view: memoryview) -> int:
        count = 0
        try:
            while True:
                got = self._tls.read(len(view) - count, view[count:])
                if not got:
                    raise ConnectionResetError("the peer ended the TLS connection")
                count += int(got)
        except ssl.SSLWantReadError:
            return count
        except ssl.SSLError as error:
            raise ConnectionResetError(explain(error)) from None

    def _encrypt(self, plain: memoryview) -> int:
        done = 0
        try:
            with self._lock:
                while done < len(plain):
                    done += self._tls.write(plain[done:])  # one record at a time
        except ssl.SSLError as error:
            raise ConnectionResetError(explain(error)) from None
        return done
