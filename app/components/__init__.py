"""Streamlit components of our own, inline and without a build step."""
