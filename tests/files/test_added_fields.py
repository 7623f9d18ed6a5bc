"""Fields that were added to a format, and how values stand in files."""
