"""Training runs: started, watched while they go on and after, several side by side."""
