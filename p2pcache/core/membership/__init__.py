"""Which nodes are members, which neighbours they are told, whether others can dial them."""
