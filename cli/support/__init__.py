"""Shared by commands: options, settings, the agent to talk to, progress, output. Imports no command."""
