"""What a server prepares is prepared in a server alone: a page that is looked at without one starts no process."""

import threading

from app import preload


def test_only_a_server_begins_and_once(monkeypatch):
    begun = []
    monkeypatch.setattr(preload, "_enabled", threading.Event())
    monkeypatch.setattr(preload, "_started", threading.Event())
    monkeypatch.setattr(preload, "_preload", lambda: begun.append(threading.current_thread().name))
    preload.start_once()
    assert not begun
    preload.enable()
    preload.start_once()
    preload.start_once()
    for thread in threading.enumerate():
        if thread.name == "loads ahead":
            thread.join()
    assert begun == ["loads ahead"]
