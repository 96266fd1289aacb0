"""One model on its way to this node."""
