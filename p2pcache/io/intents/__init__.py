"""What operators asked to be true, where it lasts."""
