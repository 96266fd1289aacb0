"""Registries as sources."""
