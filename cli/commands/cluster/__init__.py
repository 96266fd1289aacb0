"""Commands about the cluster and this node."""
