"""Draws plans as SVG and formats numbers, for pages, reports and notebooks."""
