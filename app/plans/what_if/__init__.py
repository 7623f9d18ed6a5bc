"""Sliders on top of a plan, and the proof of what they try."""
