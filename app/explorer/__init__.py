"""The graph canvas on a page: what it shows, how it looks, its overlays."""
