"""Chunks from the wire into memory, proved."""
