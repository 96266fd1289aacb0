"""What a load reads, in which batches, and into which memory; decided before a byte moves."""
