"""Recorded storms as one page with charts."""
