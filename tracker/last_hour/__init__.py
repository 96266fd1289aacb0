"""What happened within the last hour, in bounded memory, for the tracker's page."""
