"""The agent's work for its node: limits, cleaning, labels, figures."""
