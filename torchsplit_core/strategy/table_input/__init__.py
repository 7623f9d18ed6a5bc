"""Rows of training tables: parses free text and cells into the input of an estimate."""
