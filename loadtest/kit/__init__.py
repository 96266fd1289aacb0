"""What load tests share: daemons, networks, models, faults."""
