"""What an agent does for its node: limits, cleaning, figures."""
