"""How to get from what runs now to a plan."""
