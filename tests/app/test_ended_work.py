"""Work that ended: its result is linked where its user is, a failure says why and can be tried again."""

import os
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.shell.result_location import location_of
from tests.support.app.values import graph
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import (
    EVALUATE,
    EXPLAIN,
    JOBS,
    PLAN,
    RUN_HERE,
    TRACE,
    WHAT_IF,
    EvaluateParameters,
    JobParameters,
    RequestParameters,
    RunHereParameters,
    TraceParameters,
    UploadedFile,
    to_stored,
)
from torchsplit_core.workspace.store import JobRecord, Workspace

SOURCE = "chain.pt2"


def begin(workspace: Workspace, name: str, parameters: JobParameters, title: str = "The work") -> str:
    """A job that runs, for all that a page can see."""
    job = workspace.add_job(title, name, to_stored(name, parameters)).id
    pid = os.getpid()
    runner._write(workspace.store, job, {"state": "running", "pid": pid, "born": runner._start_ticks(pid)})
    return job


def finish(workspace: Workspace, job: str, **end: Any) -> None:
    runner._write(workspace.store, job, {"state": "done", "seconds": 3.0} | end)


def panel(opened: AppTest) -> list[str]:
    """The lines of work that ended, as read."""
    return [one.value.replace("\\", "") for one in opened.markdown if one.value.startswith("**The work")]


def test_a_result_is_linked_where_its_user_is_until_it_is_closed(page, workspace):
    job = begin(workspace, TRACE, TraceParameters(SOURCE))
    opened = page("host", workspace)
    assert not panel(opened)
    workspace.put("graph", SOURCE, graph())
    finish(workspace, job)
    opened.run()
    assert panel(opened) == ["**The work** is done."]
    (link,) = [element for element in opened.get("page_link") if element.proto.label == "Open it"]
    assert "model=chain.pt2" in link.proto.query_string
    opened.run()
    assert panel(opened)
    opened.button(key=f"close-{job}").click().run()
    assert not panel(opened) and not opened.exception


def test_on_the_page_of_the_result_nothing_more_is_said(page, workspace):
    workspace.put("graph", SOURCE, graph())
    workspace.set_setting("model", SOURCE)
    job = begin(workspace, TRACE, TraceParameters(SOURCE))
    opened = page("model", workspace)
    finish(workspace, job)
    opened.run()
    assert not panel(opened) and not opened.exception


def test_a_plan_and_its_explanation_are_one_line(page, workspace):
    found = [begin(workspace, name, RequestParameters("mix")) for name in (PLAN, EXPLAIN)]
    opened = page("host", workspace)
    for job in found:
        finish(workspace, job)
    assert len(panel(opened.run())) == 1


def test_a_failure_says_why_where_its_user_is_and_is_tried_again(page, workspace, started):
    job = begin(workspace, EVALUATE, EvaluateParameters(quick=True))
    opened = page("host", workspace)
    finish(workspace, job, state="failed", fault="It ran out of memory.")
    opened.run()
    assert "It ran out of memory." in panel(opened)[0]
    opened.button(key=f"resume-{job}").click().run()
    assert started == [(EVALUATE, EvaluateParameters(quick=True))]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_activity_starts_the_last_of_equal_work_again(state, page, workspace, started):
    parameters = TraceParameters("net.py:Net", UploadedFile("net.py", "0" * 64))
    for _ in range(2):
        job = begin(workspace, TRACE, parameters)
        finish(workspace, job, state=state, fault="no weights")
    opened = page("activity", workspace)
    (button,) = [element for element in opened.button if element.label == "Try again"]
    assert button.key == f"resume-{job}" and "only if the file has not changed" in button.help
    button.click().run()
    assert started == [(TRACE, parameters)] and not opened.exception


def test_on_a_models_page_the_failure_of_another_is_a_line_and_not_lost(page, workspace):
    for source in (SOURCE, "other.pt2"):
        workspace.put("graph", source, graph())
    workspace.set_setting("model", SOURCE)
    job = begin(workspace, TRACE, TraceParameters("other.pt2"))
    opened = page("model", workspace)
    finish(workspace, job, state="failed", fault="It has no weights.")
    opened.run()
    assert "It has no weights." in panel(opened)[0] and not opened.error
    own = begin(workspace, TRACE, TraceParameters(SOURCE), "Another")
    opened.run()
    finish(workspace, own, state="failed", fault="It has no inputs.")
    opened.run()
    assert [one.value.replace("\\", "") for one in opened.error] == ["Another failed. It has no inputs."]
    assert len(panel(opened)) == 1 and not opened.exception


def test_activity_links_what_is_done(page, workspace):
    finish(workspace, begin(workspace, RUN_HERE, RunHereParameters()))
    opened = page("activity", workspace)
    (link,) = [element for element in opened.get("page_link") if element.proto.label == "Open the result"]
    assert "tab=run-it" in link.proto.query_string


def test_every_kind_of_work_has_a_place_for_its_result_and_damaged_parameters_have_none():
    for name in set(JOBS) - {WHAT_IF}:
        place = location_of(
            JobRecord("job", "workspace", "title", name, {"request": "a", "source": "b"}, 0.0)
        )
        assert place is not None, name
    damaged = (None, [], {}, {"source": 3}, {"sources": []})
    for parameters in damaged:
        assert location_of(JobRecord("job", "workspace", "title", TRACE, parameters, 0.0)) is None
    assert (
        location_of(JobRecord("job", "workspace", "title", "of a later version", {"source": "b"}, 0.0))
        is None
    )
