"""How often a page asks the store in one run: no more than it needs, and no more for many models than for one."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.session import workspace as workspaces
from tests.support.app.values import SOURCE, graph, profile
from torchsplit_core.workspace.store import Store

MOST = {
    "models": 9, "graph": 12, "profile": 10, "partition": 20, "plan": 17, "present": 16, "place": 6,
    "deploy": 13, "overview": 24, "model": 13, "placements": 5, "trainings": 4, "evaluation": 6,
    "training": 7, "runs": 8, "host": 4, "activity": 6, "help": 4, "workspace": 9,
}  # fmt: skip
"""Transactions of one run by page, in a workspace in which every step has a result."""


def asked(opened: AppTest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The transactions of one more run of the page."""
    found = []
    real = Store.connect

    @contextmanager
    def counted(store, **how):
        found.append("a transaction")
        with real(store, **how) as database:
            yield database

    # A thread of the server's own looks after the store beside the pages: what it asks is not the page's.
    for thread in threading.enumerate():
        if thread.name == workspaces.MAINTENANCE:
            thread.join()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "connect", counted)
        opened.run()
    assert not opened.exception
    return len(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MOST))
def test_a_page_asks_the_store_so_often(name, page, filled, monkeypatch):
    assert 0 < asked(page(name, filled), monkeypatch) <= MOST[name]


@pytest.mark.parametrize("name", ["graph", "models", "partition", "plan"])
def test_more_models_ask_no_more(name, page, filled, monkeypatch):
    for number in range(5):
        filled.put("graph", f"{SOURCE} {number}", graph())
        filled.put("profile", f"{SOURCE} {number}", replace(profile(), source=f"{SOURCE} {number}"))
    opened = page(name, filled)
    if name in ("graph", "partition"):
        opened.query_params["model"] = SOURCE
        opened.run()
    assert asked(opened, monkeypatch) <= MOST[name]
