"""The dashboard's pages. `torchsplit app` serves them by app/server.py; `streamlit run app/main.py` has no guard."""

import gc
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A large graph is hundreds of thousands of small objects: collecting garbage after every 700 new objects, Python's
# default, takes a third of the time to draw it.
gc.set_threshold(100_000, 20, 20)
# Streamlit puts the folder of this file on the path, which child processes inherit: its modules would hide those of
# Python with the same name (numbers).
sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry not in (str(ROOT), str(ROOT / "app")))]

import streamlit as st  # noqa: E402

from app import fragment_messages, login, preload  # noqa: E402
from app.shell import frame, navigation  # noqa: E402

fragment_messages.send_whole()
ICON = str(ROOT / "app" / "icon.svg")
st.set_page_config(page_title="TorchSplit", page_icon=ICON, layout="wide", initial_sidebar_state=210)
st.logo(str(ROOT / "app" / "logo.svg"), icon_image=ICON)
if login.is_admitted():
    frame.run(navigation.menu)
    preload.start_once()
    preload.collect_garbage()
