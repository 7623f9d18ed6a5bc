"""Streamlit looks through every installed package for components: once a process here, not at each run of a page."""

from functools import cache

from streamlit.components.v2 import manifest_scanner


def look_once() -> None:
    """From now on this process remembers what the first look found. The look takes longer than most pages."""
    manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)
