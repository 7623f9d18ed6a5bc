"""The server that clients talk to: protocol, batches, queues, metrics, start and end."""
