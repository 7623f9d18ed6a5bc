"""The tab that sizes an LLM: which GPUs, slices or groups serve it, and how many."""
