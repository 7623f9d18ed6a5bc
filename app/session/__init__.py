"""What a browser session sees of the stored work."""
