"""Which node may read which run from storage."""
