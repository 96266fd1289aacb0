"""Downloads: from a ref to a model that is complete and published on this node."""
