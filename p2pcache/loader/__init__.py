"""Weights into memory, host or GPU, while they still arrive."""
