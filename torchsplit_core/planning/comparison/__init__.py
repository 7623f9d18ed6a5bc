"""Two plans side by side: what changes, what drains."""
