"""All that a tracker knows and decides."""
