"""Where a peer says it can be dialled: "host:port" or "[v6]:port". Pure."""

from p2pcache.errors import RemoteProtocolError

_PORT_DIGITS = 5  # or a number of any length would be taken in


def split(address: str) -> tuple[str, int]:
    """Host (without brackets; it may be a name) and port (1 to 65535).

    Raises:
        RemoteProtocolError: it isn't an address.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS and int(port)
    if not host or not 0 < number < 65536:
        raise RemoteProtocolError(f"not a peer address: {address[:80]!r}")
    return host, number
