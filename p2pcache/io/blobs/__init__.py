"""Bytes of files: partial, proved, complete."""
