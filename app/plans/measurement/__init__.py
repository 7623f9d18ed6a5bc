"""The tab Run it: the plan served on this host under load, measured beside what was predicted."""
