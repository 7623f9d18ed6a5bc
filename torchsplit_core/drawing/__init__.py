"""A graph as a picture: groups, what is open, layout, overlays, SVG. Without torch and without streamlit."""
