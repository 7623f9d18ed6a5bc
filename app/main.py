"""The dashboard's entry: `streamlit run app/main.py` from the repository root."""

import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A large graph is hundreds of thousands of small objects; looking for garbage after every 700 new
# ones, as Python does by default, takes a third of the time to draw it.
gc.set_threshold(100_000, 20, 20)
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
