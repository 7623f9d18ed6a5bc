"""What a server prepares is prepared in a server alone: a page that is looked at without one starts no process."""

from __future__ import annotations

import threading

import pytest

from app import ahead


def test_only_a_server_begins_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(ahead, "_served", threading.Event())
    monkeypatch.setattr(ahead, "_began", threading.Event())
    monkeypatch.setattr(ahead, "_load", lambda: begun.append(threading.current_thread().name))
    ahead.begin()
    assert not begun
    ahead.serve()
    ahead.begin()
    ahead.begin()
    for thread in threading.enumerate():
        if thread.name == "loads ahead":
            thread.join()
    assert begun == ["loads ahead"]
