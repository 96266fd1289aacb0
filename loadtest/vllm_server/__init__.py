"""A real vLLM server in front of real agents."""
