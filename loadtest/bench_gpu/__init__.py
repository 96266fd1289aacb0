"""Weights into GPU memory, beside other loaders."""
