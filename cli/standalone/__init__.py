"""What commands do without a daemon: an agent of their own, the cache directory, a push to storage."""
