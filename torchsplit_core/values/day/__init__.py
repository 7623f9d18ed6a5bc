"""Days of demand planned."""
