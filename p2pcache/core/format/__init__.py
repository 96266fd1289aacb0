"""What a model is on disk and in storage: manifest, chunks, refs, tags."""
