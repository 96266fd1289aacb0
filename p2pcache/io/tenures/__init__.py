"""Where the record of the active tracker lies, and how it is changed by comparison."""
