"""The local HTTP API: who may call what, and what it answers."""
