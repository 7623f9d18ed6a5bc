"""How to train a transformer on a fleet: what is asked and what is answered."""
