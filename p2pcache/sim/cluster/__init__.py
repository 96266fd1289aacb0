"""Nodes, tracker and network in virtual time."""
