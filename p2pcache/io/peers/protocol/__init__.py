"""Frames on the wire between nodes, and their limits."""
