"""The commands on LLMs that batch continuously: a measured endpoint."""
