"""The exact search for segments of many GPUs."""
