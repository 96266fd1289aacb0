"""What an agent must be shown before it takes a model."""
