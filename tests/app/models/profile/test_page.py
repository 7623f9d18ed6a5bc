"""The Profile page: what it answers, its tabs, what a press on Measure starts and asks."""

import hashlib
from dataclasses import replace

import pytest

from app.models.profile.measuring import grid
from app.models.profile.measuring import tab as measuring_tab
from tests.support.app.page import button, field, open_page, said, turn_to
from tests.support.app.profile_page import choose_source, opened
from tests.support.app.profiles import measured, row
from tests.support.app.values import SOURCE, graph, profile
from torchsplit_core.jobs.job_kinds import PROFILE, TRACE, ProfileParameters, UploadedFile, to_stored
from torchsplit_core.jobs.profile import ProfilePoint
from torchsplit_core.jobs.quick_start import measured_mix
from torchsplit_core.values import InputFault, Profile

pytestmark = pytest.mark.slow

TABS = ("Curves", "Memory", "Table", "Compare", "Measure", "Import")


def test_the_page_says_how_much_was_measured_and_how_sure_it_is(page, filled):
    found = page("profile", filled)
    numbers = {metric.label: metric.value.replace("\u202f", " ") for metric in found.metric}
    assert numbers["Points measured"] == "3"
    assert numbers["A measured figure is sure within"] == "± 10.6 %"
    assert numbers["An estimate is sure within"] == "× 1.41"
    assert "3 rows measured" in said(found) and "9 rows estimated" in said(found)


def test_without_intervals_nothing_is_said_to_be_sure(page, workspace):
    measured_mix(workspace)
    numbers = {metric.label: metric.value for metric in page("profile", workspace).metric}
    assert numbers["A measured figure is sure within"] == numbers["An estimate is sure within"] == "n/a"


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_opens_on_an_empty_and_on_a_full_workspace(tab, page, workspace):
    assert not opened(page, workspace, tab).error
    for name in ("sample:one", "sample:two"):
        workspace.put("profile", name, measured(name))
    assert not opened(page, workspace, tab).error


def test_two_profiles_are_compared_by_the_median_of_their_common_points(page, workspace):
    for name, speed in (("sample:one", 1.0), ("sample:two", 2.0)):
        workspace.put("profile", name, measured(name, speed=speed))
    times = "gives **0.5 ×** the throughput of sample:two (median of 13 common points)"
    assert times in said(opened(page, workspace, "Compare"))


@pytest.mark.parametrize("tab", ("Curves", "Memory", "Table", "Compare"))
def test_a_profile_without_rows_shows_no_picture(tab, page, workspace):
    workspace.put("profile", "sample:none", Profile("sample:none", "abc"))
    assert "No figure is here yet" in said(opened(page, workspace, tab))


def test_what_is_measured_is_the_model_of_the_page(workspace):
    for name in ("sample:diamond", "sample:ocr"):
        workspace.put("profile", name, measured(name))
    for asked in ("sample:ocr", "sample:diamond"):
        found = open_page("model", workspace, model=asked, tab="profile", view="measure")
        assert found.multiselect(key="profile-measure-models").value == [asked]
        assert any(element.value.endswith(" in 1 profile") for element in found.caption)
        assert found.session_state["profile-compare-first"] == asked


def test_the_chosen_place_alone_is_in_the_table_and_outlives_a_look_at_another_tab(page, filled):
    tab = opened(page, filled, "Curves")
    tab.multiselect(key="profile-show-places").set_value(["A100-80GB · 3g.40gb"]).run()
    table = tab.dataframe[0].value
    assert set(table["basis"]) == {"estimated"} and set(table["slice"]) == {"3g.40gb"}
    tab.multiselect(key="profile-show-places").set_value(["A100-80GB · 4g.40gb"]).run()
    turn_to(tab, "profile-tab", "Table")
    turn_to(tab, "profile-tab", "Curves")
    assert tab.multiselect(key="profile-show-places").value == ["A100-80GB · 4g.40gb"]


def test_what_is_imported_meanwhile_is_drawn_beside_what_was_chosen(page, workspace):
    workspace.put("profile", "sample:m", Profile("m", "", rows=(row(1, 5.0, kind="CPU", size=None),)))
    tab = opened(page, workspace, "Curves")
    before = set(tab.multiselect(key="profile-show-places").value)
    assert before == {"CPU"}
    workspace.put("profile", "import:m", measured("import:m"))
    tab.run()
    assert before < set(tab.multiselect(key="profile-show-places").value)


def test_a_profile_measured_anew_is_fitted_anew(page, workspace):
    workspace.put("profile", "sample:m", measured("sample:m"))
    tab = opened(page, workspace, "Curves")
    assert "far from the others" not in said(tab)
    workspace.put("profile", "sample:m", measured("sample:m", far_off=4))
    tab.run()
    assert "1 point far from the others" in said(tab)


def test_the_notes_of_a_measurement_are_shown(page, workspace):
    profile = measured("sample:m")
    told = {**profile.environment, "notes": "Batch 4: memory grew by 80 MiB over 40 runs."}
    workspace.put("profile", "sample:m", replace(profile, environment=told))
    assert "memory grew by 80 MiB" in said(opened(page, workspace, "Curves"))


def test_measuring_starts_one_job_for_the_chosen_models_and_devices(page, filled, started, known):
    tab = choose_source(opened(page, filled, "Measure"))
    button(tab, "Measure").click().run()
    title, parameters = started[0]
    assert title == f"Profile {SOURCE}" and len(started) == 1
    assert parameters.sources == (SOURCE,) and parameters.device == "cpu"
    assert parameters.batch_sizes is None and parameters.point_budget_s == 2.0
    assert parameters.again_since == 0.0 and parameters.uploads == {}


@pytest.mark.parametrize(
    "text", ["0", "1, 1000000", ",", "two", "-3", ",".join(str(n) for n in range(1, 40))]
)
def test_a_batch_grid_that_makes_no_sense_is_one_message(text, page, filled, started, known):
    tab = choose_source(opened(page, filled, "Measure"))
    tab.text_input(key="profile-measure-batches").set_value(text).run()
    button(tab, "Measure").click().run()
    assert len(tab.error) == 1 and "batch sizes" in said(tab)
    assert not started


def test_the_grid_shows_what_is_known_what_failed_and_what_is_to_do(page, filled, known):
    known += [
        ProfilePoint(SOURCE, "cpu", 1, "measured", 123.4, kept=1e9),
        ProfilePoint(SOURCE, "cpu", 2, "failed", message="batch 2 was out of memory", kept=1e9),
        ProfilePoint(SOURCE, "cpu", 4, "open"),
        ProfilePoint(
            SOURCE, "cpu", 8, "failed", message="Not tried: three runs would take too long.", kept=1e9
        ),
    ]
    text = said(choose_source(opened(page, filled, "Measure")))
    assert ">not tried<" in text and ">failed<" not in text
    assert "<b>123</b>" in text and ">to measure<" in text
    assert 'title="batch 2 was out of memory"' in text and ">out of memory<" in text


def test_points_of_the_earlier_hash_are_shown_as_old_and_are_to_be_measured(page, filled, known, started):
    known += [ProfilePoint(SOURCE, "cpu", 1, "open", old=True), ProfilePoint(SOURCE, "cpu", 2, "open")]
    tab = choose_source(opened(page, filled, "Measure"))
    text = said(tab)
    assert "1 of these points is kept as old (measured under the earlier architecture hash)" in text
    assert text.count('title="old (measured under the earlier architecture hash)"') == 1
    button(tab, "Measure").click().run()
    assert len(started) == 1  # nothing is asked about: nothing would be taken over


@pytest.mark.parametrize(
    ("label", "again"), [("Measure only the 1 missing", False), ("Measure all 2 again and replace", True)]
)
def test_known_points_are_asked_about_before_they_are_replaced(label, again, page, filled, started, known):
    known += [
        ProfilePoint(SOURCE, "cpu", 1, "measured", 9.0, kept=1e9),
        ProfilePoint(SOURCE, "cpu", 2, "open"),
    ]
    tab = choose_source(opened(page, filled, "Measure"))
    tab.text_input(key="profile-measure-batches").set_value("1, 2").run()
    button(tab, "Measure").click().run()
    assert not started and "1 of 2 points** were measured on 2001-09-0" in said(tab)
    button(tab, label).click().run()
    assert len(started) == 1 and (started[0][1].again_since > 0) == again


def test_to_cancel_the_question_measures_nothing(page, filled, started, known):
    known += [ProfilePoint(SOURCE, "cpu", 1, "measured", 9.0, kept=1e9)]
    tab = choose_source(opened(page, filled, "Measure"))
    button(tab, "Measure").click().run()
    # The client may offer more batch sizes than were measured.
    assert not button(tab, "Measure what is missing").disabled
    tab.button(key="profile-ask-cancel").click().run()
    tab.text_input(key="profile-measure-batches").set_value("1").run()
    button(tab, "Measure").click().run()
    assert button(tab, "Nothing is missing").disabled
    tab.button(key="profile-ask-cancel").click().run()
    assert not started and not tab.exception


def test_a_python_file_is_measured_only_with_trust(page, workspace, started, known):
    name = "net.py:Net"
    workspace.put("graph", name, graph())
    workspace.put_bytes("upload", "net.py", b"class Net: ...")
    tab = opened(page, workspace, "Measure")
    button(tab, "Measure").click().run()
    assert not started and "is not trusted, and to read a .py file is to execute it" in said(tab)
    field(tab, "checkbox", "I trust").check().run()
    button(tab, "Measure").click().run()
    digest = hashlib.sha256(b"class Net: ...").hexdigest()
    assert started[0][1].uploads == {name: UploadedFile("net.py", digest)}


def test_imported_tables_are_no_models_to_measure():
    options = measuring_tab.sources(["net.py:Net"], {"import:x": profile(), "sample:bert": profile()})
    assert options[:2] == ["net.py:Net", "sample:bert"] and "import:x" not in options
    assert "sample:clip" in options and len(options) == len(set(options))


def test_progress_says_which_point_is_being_measured():
    cells = [
        ProfilePoint("a", "cpu", 1, "measured", 1.0),
        ProfilePoint("a", "cpu", 2, "open"),
        *(ProfilePoint("b", "cpu", batch, "open") for batch in (1, 2, 4)),
    ]
    at = grid.parse_progress("b · batch size 2", ["a", "b"], ["cpu"])
    assert at == grid.JobPosition("b", "cpu", 2)
    assert grid.point_labels(cells, at) == {
        ("a", "cpu", 2): "queued", ("b", "cpu", 1): "no figure", ("b", "cpu", 2): "measuring",
        ("b", "cpu", 4): "queued",
    }  # fmt: skip
    assert set(grid.point_labels(cells, None).values()) == {"to measure"}


@pytest.mark.parametrize(("message", "at"), [
    ("cuda:0: batch size 16", grid.JobPosition("a", "cuda:0", 16)),
    ("mig:MIG-1: queued: another measurement runs on it", grid.JobPosition("a", "mig:MIG-1", waiting=True)),
    ("cuda:0: timing every operation", grid.JobPosition("a", "cuda:0", past_batches=True)),
    ("building the model", grid.JobPosition("a")),
])  # fmt: skip
def test_progress_of_several_devices_names_the_device(message, at):
    assert grid.parse_progress(message, ["a"], ["cuda:0", "mig:MIG-1"]) == at


@pytest.mark.parametrize(("at", "said"), [
    (grid.JobPosition("a", "x"), ["measuring", "queued", "queued"]),
    (grid.JobPosition("a", "x", waiting=True), ["queued", "queued", "queued"]),
    (grid.JobPosition("a", "x", past_batches=True), ["no figure", "no figure", "queued"]),
    (grid.JobPosition("a"), ["measuring", "queued", "measuring"]),
])  # fmt: skip
def test_two_devices_are_told_apart_in_the_grid(at, said):
    cells = [
        ProfilePoint("a", "x", 1, "open"),
        ProfilePoint("a", "x", 2, "open"),
        ProfilePoint("a", "y", 1, "open"),
    ]
    assert list(grid.point_labels(cells, at).values()) == said


def test_a_stopped_measurement_is_resumed_with_its_parameters(page, workspace, started):
    parameters = ProfileParameters((SOURCE,), "cpu", (1, 2), again_since=5.0)
    workspace.add_job("Profile it", PROFILE, to_stored(PROFILE, parameters))
    found = page("profile", workspace)
    assert "Profile it failed" in said(found)
    button(found, "Resume").click().run()
    assert started == [("Profile it", parameters)]


def test_work_that_keeps_nothing_offers_no_resume(page, workspace):
    workspace.add_job("Trace it", TRACE, {"source": SOURCE})
    found = page("profile", workspace)
    assert "Trace it failed" in said(found)
    assert "Resume" not in [element.label for element in found.button]


def test_a_device_that_has_gone_is_one_message(page, filled, monkeypatch):
    def gone(workspace, parameters):
        raise InputFault("device", "'mig:MIG-1' is not available on this host", "Choose another.")

    monkeypatch.setattr(grid, "profile_points", gone)
    tab = choose_source(opened(page, filled, "Measure"))
    assert len(tab.error) == 1 and "not available on this host" in said(tab)
