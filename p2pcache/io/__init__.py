"""What touches the world: disk, sockets, clocks, threads. It performs, it decides nothing."""
