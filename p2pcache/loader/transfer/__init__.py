"""A load at work: bytes from a source into memory."""
