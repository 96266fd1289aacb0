"""Who brings runs across the boundary of a rack or site."""
