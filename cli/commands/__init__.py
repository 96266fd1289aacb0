"""The commands: a folder for each part of the help, a module for each word (see cli/main.py)."""
