"""LLMs in plans: their engines as points of a request, and plans whose engines keep their limits when simulated."""
