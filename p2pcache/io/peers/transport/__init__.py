"""Connections between nodes: dialling, TLS, threads."""
