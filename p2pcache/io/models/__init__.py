"""Models in the cache: published, arriving, removed, recovered."""
