"""`python -m loadtest.bench`: the parts of a node, and p2pcache beside other programs that move objects."""
