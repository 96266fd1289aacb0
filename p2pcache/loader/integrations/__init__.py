"""The engines' own seams, filled with the loader. Nothing here is imported before an engine asks."""
