"""Load tests, the demo, and the harness that starts real daemons. Not part of the wheel."""
