"""Commands that run without a daemon."""
