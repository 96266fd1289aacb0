"""Commands about this program."""
