"""Models that come from agents of other clusters' sites, as torrents over uTP."""
