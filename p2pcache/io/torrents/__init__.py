"""Torrents: models for and from BitTorrent clients, by libtorrent, which is an extra."""
