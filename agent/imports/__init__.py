"""Imports: models come from configured sources into this cache, by wish or on a first miss."""
