"""Traces of demand: read from tables, cut into windows of the day, put into plan requests."""
