"""What clients ask for: pulls, pushes, warms, loads."""
