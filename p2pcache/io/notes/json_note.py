"""Notes in the cache dir: small JSON files that may get lost, but are never half written."""

import contextlib
import logging
from pathlib import Path
from typing import TypeVar

import msgspec

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 8 << 20

Page = TypeVar("Page", bound=msgspec.Struct)


def read_page(path: Path, kind: type[Page]) -> Page | None:
    """Read a page that `write_page` wrote; None, and a warning, if it can't be read. None if missing."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_FILE_BYTES), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("ignoring %s: %s", path, error)
        return None


def write_page(path: Path, page: bytes) -> bool:
    """Write an encoded page atomically; returns whether that was done. Blocking; errors are logged."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_bytes(page)
        fresh.replace(path)
    except OSError as error:
        log.warning("can't write %s: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        return False
    return True
