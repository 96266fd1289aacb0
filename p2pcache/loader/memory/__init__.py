"""Host and device memory that tensors are loaded into."""
