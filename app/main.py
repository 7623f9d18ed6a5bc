"""The dashboard's entry: `streamlit run app/main.py` from the repository root."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Streamlit puts only the folder of this file on the path.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from app import frame, navigation  # noqa: E402

st.set_page_config(
    page_title="TorchSplit",
    page_icon=str(ROOT / "app" / "icon.svg"),
    layout="wide",
    initial_sidebar_state=210,
)
st.logo(str(ROOT / "app" / "logo.svg"), icon_image=str(ROOT / "app" / "icon.svg"))
frame.run(navigation.menu)
