"""The exact search where segments have many GPUs."""
