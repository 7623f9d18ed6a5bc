"""What is asked: fleet, models, pairs and objective, edited in the left column."""
