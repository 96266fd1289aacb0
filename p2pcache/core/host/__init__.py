"""Decisions about one machine: diagnosis, giving way to an engine, labels."""
