"""The Open Inference Protocol v2 over HTTP, for all who speak it: front, router, Ray application, load."""
