"""The agent's HTTP API: its calls, their rights and their answers."""
