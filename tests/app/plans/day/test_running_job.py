"""The progress of a job of the tab, and the button that ends it."""

from types import SimpleNamespace

import pytest
from streamlit.testing.v1 import AppTest

from tests.support.app.page import press
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import DAY, HELD_OUT

SCRIPT = """
from app.plans.day import running_job
from app.shell import frame
from torchsplit_core import jobs
workspace, (kind, *stop) = frame.open_page("Plan"), {arguments}
if jobs.running(workspace, (kind,), "review"):
    running_job.render(workspace, "review", kind, *stop)
"""


@pytest.mark.parametrize(
    ("arguments", "stops"), [((HELD_OUT, "stop"), [(HELD_OUT,)]), ((DAY,), [])], ids=["stop", "no stop"]
)
def test_a_job_is_stopped_where_it_has_a_button(filled, monkeypatch, arguments, stops):
    running, ended = [SimpleNamespace(share=0.4, message="window 2 of 5")], []

    def end(_, kinds, name):
        ended.append(kinds)
        running.clear()

    monkeypatch.setattr(jobs, "running", lambda _, kinds, name: list(running))
    monkeypatch.setattr(jobs, "end", end)
    test = AppTest.from_string(SCRIPT.format(arguments=arguments), default_timeout=120)
    test.query_params["workspace"] = filled.id
    test.run()
    assert not test.exception
    assert [button.key for button in test.button if button.label == "Stop"] == ["stop"] * len(stops)
    if stops:
        press(test, "Stop")
    assert ended == stops and bool(running) is not bool(stops)
