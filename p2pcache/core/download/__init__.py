"""What a node asks of its neighbours."""
