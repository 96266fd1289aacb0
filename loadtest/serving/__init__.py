"""What a storm costs the requests of an engine on the seeding node."""
