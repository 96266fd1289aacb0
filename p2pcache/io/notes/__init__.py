"""Small files that outlive a process."""
