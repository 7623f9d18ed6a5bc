"""LLMs: the sizes of decoders."""
