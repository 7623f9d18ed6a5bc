"""What is asked: decoders, fleets, divisions, checks."""
