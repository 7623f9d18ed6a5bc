"""The least latency of pipelines that reach a throughput."""
