"""Where the bytes of a load come from."""
