"""What runs on a host's GPUs now, and how to get from there to a plan."""
