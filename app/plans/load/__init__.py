"""A plan under load: arrivals, response times against limits, utilisation of each slice, the highest load."""
