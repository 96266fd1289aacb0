"""What an import of each kind of source costs, beside that store's own usual client."""
