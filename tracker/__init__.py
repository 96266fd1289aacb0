"""The tracker: membership, refs and manifests, origin leases. Soft state only."""
