"""Draws the parts of the slice map: cards and rows of GPUs, tenants, the flow of cut models' stages, the legend."""
