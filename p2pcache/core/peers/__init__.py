"""What a node knows of its neighbours: what they have, how quick they are."""
