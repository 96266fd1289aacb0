"""Imports: the files of a source become a manifest, each byte read once."""
