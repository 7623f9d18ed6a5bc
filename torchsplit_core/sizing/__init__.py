"""How many of which GPUs, slices or groups serve an LLM at a rate within limits."""
