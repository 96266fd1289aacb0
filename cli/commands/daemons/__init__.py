"""Commands that run daemons or make their secrets."""
