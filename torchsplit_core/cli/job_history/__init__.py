"""The command history: from the job history of a site to its demand over the day."""
