"""Disk, sockets, clocks, threads: everything that touches the world. It performs; `core` decides."""
