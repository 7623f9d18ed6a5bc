"""The dashboard's shell: the only importer of streamlit, together with pages."""
