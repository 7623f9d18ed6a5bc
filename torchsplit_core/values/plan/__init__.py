"""What is asked of the planner, what it answers, and why."""
