"""Plans that run."""
