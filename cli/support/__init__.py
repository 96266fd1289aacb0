"""What commands share: options, settings, the agent to talk to, progress, output. No command is imported here."""
