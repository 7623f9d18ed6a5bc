"""What a simulation is asked and what it answers."""
