"""The same deciders in virtual time."""
