"""What the tracker orders this node to keep."""
