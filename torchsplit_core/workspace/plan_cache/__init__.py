"""Known plans of a workspace, by equivalent request."""
