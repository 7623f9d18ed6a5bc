"""The Workspace page: what is stored, its archive."""
