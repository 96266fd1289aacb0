"""Where tensors end: host and device memory."""
