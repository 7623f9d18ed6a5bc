"""What jobs record of their own work."""
