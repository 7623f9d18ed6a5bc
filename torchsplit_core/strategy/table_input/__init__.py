"""Rows of training tables: free text and cells to what a step is reckoned from."""
