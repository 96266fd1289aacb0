"""Directories of users: indexed for a push, materialised after a pull."""
