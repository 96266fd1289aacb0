"""Which bytes go where, decided before a byte moves."""
