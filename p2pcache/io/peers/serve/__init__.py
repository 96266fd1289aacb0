"""Chunks from this node to others."""
