"""What a node serves: admission and order of uploads."""
