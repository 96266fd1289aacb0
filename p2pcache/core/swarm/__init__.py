"""The contract of one swarm on a node: events, commands, states of runs, snapshots."""
