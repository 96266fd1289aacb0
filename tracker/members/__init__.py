"""Connections of the members."""
