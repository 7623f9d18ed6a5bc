"""The Open Inference Protocol v2 over HTTP, for frontend, router, Ray application and load tests."""
