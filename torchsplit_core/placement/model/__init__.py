"""What a segment costs: speed, memory, latency, batches."""
