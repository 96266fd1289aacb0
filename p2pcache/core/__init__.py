"""The deciders: pure, deterministic, no clock and no I/O. Time and dice are arguments."""
