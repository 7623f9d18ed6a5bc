"""Pictures of training runs."""
