"""Work without a daemon: an agent inside the command, the cache directory itself, a push to storage."""
