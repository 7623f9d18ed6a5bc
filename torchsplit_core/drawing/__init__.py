"""Draws a graph: groups, open and closed, layout, overlays, SVG. Needs neither torch nor streamlit."""
