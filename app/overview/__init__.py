"""What is in a workspace, what it says, what comes next; the work on it; what the words mean."""
