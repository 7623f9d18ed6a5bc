"""The draft on the Plan page: its quick plan, and the bar with its changes and gains."""
