"""Demand over the day: its windows, a plan for each, and whether changing between them pays."""
