"""The Profile page as a user drives it."""

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

from tests.support.app.page import turn_to
from tests.support.app.values import SOURCE
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]


def opened(page: Open, workspace: Workspace, tab: str) -> AppTest:
    return turn_to(page("profile", workspace), "profile-tab", tab)


def choose_source(page: AppTest) -> AppTest:
    return page.multiselect(key="profile-measure-models").set_value([SOURCE]).run()
