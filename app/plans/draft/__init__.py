"""The draft on the Plan page: its quick plan, and the bar that says what it changes and brings."""
