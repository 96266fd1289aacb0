"""Doors: protocols of other programs in which this agent hands out models, read-only."""
