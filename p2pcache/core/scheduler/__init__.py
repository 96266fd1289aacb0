"""The decider of one swarm on one node, its batches and its recording."""
