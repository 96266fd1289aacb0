"""Certificates, cluster keys, credentials of local peers."""
