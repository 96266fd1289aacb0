"""The agent: one per node, it owns the cache and takes part in swarms."""
