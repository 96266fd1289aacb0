"""The work that clients ask for: pulls, pushes, warms, loads, housekeeping."""
