"""What commands share: options, output, progress, the connection to an agent."""
