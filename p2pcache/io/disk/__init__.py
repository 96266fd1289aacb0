"""Files, directories and the database of one cache directory."""
