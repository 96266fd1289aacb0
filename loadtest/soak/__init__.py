"""Random work and faults on real agents, everything compared."""
