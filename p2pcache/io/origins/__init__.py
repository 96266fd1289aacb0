"""Durable storage behind one `Origin` interface: `s3://` and `file://`."""
