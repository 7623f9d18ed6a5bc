"""The tab Run it: the plan served on this host, loaded, and measured beside what was predicted."""
