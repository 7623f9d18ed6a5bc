"""What stands on the GPUs of a host: read from its driver or from texts, and checked."""
