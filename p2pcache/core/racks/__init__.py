"""Which node brings a run across the boundary of a rack or site."""
