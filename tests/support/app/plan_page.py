"""The tabs of the Plan page."""

from streamlit.testing.v1 import AppTest

from app.plans.page import TAB
from tests.support.app.page import turn_to


def tab(page: AppTest, name: str) -> AppTest:
    return turn_to(page, TAB, name)
