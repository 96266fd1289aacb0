"""The loader as a plugin of vLLM, SGLang and transformers. Engines import these modules."""
