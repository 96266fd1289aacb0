"""Words about what stays in this node's cache."""
