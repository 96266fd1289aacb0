"""Models in the layout of the Hugging Face hub's cache (`HF_HUB_CACHE`), which its clients read without a hub."""
