"""A pull storm over shaped links: real agents in namespaces, measured against the lower bound."""
