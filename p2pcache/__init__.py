"""p2pcache: peer-to-peer model distribution for inference fleets."""

__version__ = "0.1.0"
