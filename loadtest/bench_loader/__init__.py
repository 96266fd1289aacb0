"""Weights from the page cache into tensors, beside other loaders."""
