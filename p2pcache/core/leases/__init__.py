"""Who may read which run from storage."""
