"""A plan under load: arrivals, response times against limits, how busy each slice is, the highest load."""
