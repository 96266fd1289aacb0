"""Files that people write by hand, as some editors save them: with a byte order mark, or in UTF-16.

Standard library only: the CLI's fast path uses it.
"""

import codecs


def without_mark(data: bytes) -> bytes:
    """The text of a file as UTF-8 without a byte order mark; other bytes as they are.

    Notepad puts a mark in front of UTF-8, and PowerShell's `>` writes UTF-16. As a part of a key the mark would
    make another key of it, and nobody would see why.
    """
    if data.startswith(codecs.BOM_UTF8):
        return data.removeprefix(codecs.BOM_UTF8)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = data.decode("utf-16")
        except UnicodeDecodeError:
            return data
        # A key may be any bytes, and begin with these two by chance.
        return text.encode() if all(c.isprintable() or c in "\r\n\t" for c in text) else data
    return data
