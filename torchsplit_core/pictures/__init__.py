"""Plans as pictures, and numbers as people read them: SVG and text for pages, reports and notebooks."""
