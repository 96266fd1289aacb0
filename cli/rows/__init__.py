"""Tables of commands, and what rows of all nodes have in common. Stands on `support`."""
