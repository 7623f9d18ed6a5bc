"""Jobs that change the GPUs of this host."""
