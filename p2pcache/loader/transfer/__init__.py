"""The threads of a load, which read from a source into memory."""
