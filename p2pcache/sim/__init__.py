"""Storms in virtual time: the deciders of the daemons in a simulated world."""
