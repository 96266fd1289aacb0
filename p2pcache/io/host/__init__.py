"""Facts of the machine."""
