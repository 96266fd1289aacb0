"""What fetches models, and the smallest agent around it."""
