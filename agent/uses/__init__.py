"""What clients of this agent do with models, beside downloads: what they push, and by which tags they ask."""
