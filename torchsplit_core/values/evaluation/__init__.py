"""What an evaluation of planner and rules over a grid of cases finds."""
