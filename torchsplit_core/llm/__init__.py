"""LLMs from their sizes: config.json, the memory of an engine, the times of its steps."""
