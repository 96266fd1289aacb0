"""The commands, one folder for each part of the help."""
