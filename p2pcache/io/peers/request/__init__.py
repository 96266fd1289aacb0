"""What this node asks of others."""
