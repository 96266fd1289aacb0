"""Safetensors headers, indexes and dtypes."""
