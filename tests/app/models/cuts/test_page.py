"""The Partition page: what is asked, cuts ranked and chosen, one's own beside the best, offered to the planner."""

from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.cuts import CutDot, StageBar, bars, pareto_front
from app.models.cuts import form
from app.models.cuts.candidate_tables import describe_reason
from app.session import cuts
from app.session.model import open_model
from tests.app.test_ended_work import begin, finish
from tests.support.app.graphs import NAME, encoder, stored, timed
from tests.support.app.page import metrics, press, said
from tests.support.app.values import SOURCE
from torchsplit_core.jobs.job_kinds import PARTITION, PLAN, PROFILE, PartitionParameters, ProfileParameters
from torchsplit_core.jobs.partition import partition_job
from torchsplit_core.partitioning import PartitionProvider, cut_behind, cut_reasons, pareto_candidates
from torchsplit_core.values import InputFault, ignore_progress
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

LINK = 1e-3


@pytest.fixture
def cut(workspace) -> Workspace:
    """A workspace with a model of four blocks, cut into up to three stages."""
    stored(workspace, encoder(4), timed(encoder(4)))
    partition_job(workspace, PartitionParameters(NAME, 3, link_gb_per_s=LINK), ignore_progress)
    return workspace


def candidates(page: AppTest) -> Any:
    return next(table.value for table in page.dataframe if "load share, %" in table.value)


def provider_of(workspace: Workspace) -> PartitionProvider:
    return PartitionProvider(workspace.get("graph", NAME), workspace.get("profile", NAME))


def test_a_model_that_was_not_profiled_asks_for_it(page, workspace, started):
    stored(workspace, encoder(2), name=SOURCE)
    opened = page("partition", workspace)
    assert "profile this model first" in said(opened)
    press(opened, "Profile this model")
    assert started == [(PROFILE, ProfileParameters((SOURCE,)))]


def test_a_profiled_model_says_what_find_cuts_will_show(page, workspace):
    stored(workspace, encoder(2), timed(encoder(2)))
    opened = page("partition", workspace)
    assert "Press Find cuts" in said(opened) and not opened.metric and not opened.dataframe


def test_find_cuts_asks_what_the_controls_say(page, cut, started):
    opened = page("partition", cut)
    # The controls stand as the study was asked.
    assert [element.value for element in opened.number_input] == [3, LINK, None]
    opened.number_input[0].set_value(5)
    opened.number_input[2].set_value(2.5)
    opened.radio[0].set_value("latency")
    press(opened.run(), "Find cuts")
    asked = PartitionParameters(NAME, 5, "latency", link_gb_per_s=LINK, memory_bytes=5 * 2**29)
    assert started == [(PARTITION, asked)]
    opened.text_input[0].set_value("1, x")
    press(opened.run(), "Find cuts")
    assert len(started) == 1 and "is not a number above 0" in said(opened)
    opened.text_input[0].set_value("")
    for stages, problem in ((1, "is 1, below 2"), (17, "is 17, above 16")):
        opened.number_input[0].set_value(stages)
        press(opened.run(), "Find cuts")
        assert len(started) == 1 and f"Stages at most: {problem}. Give a whole number" in said(opened)


def test_activity_tells_the_jobs_of_one_model_apart(page, workspace):
    for stages, link in ((2, None), (4, 12.0)):
        finish(workspace, begin(workspace, PARTITION, PartitionParameters(NAME, stages, link_gb_per_s=link)))
    shown = said(page("activity", workspace))
    assert "most requests, 1 to 2 stages, transfers that take no time · " in shown
    assert "most requests, 1 to 4 stages, a link of 12 GB/s · " in shown


@pytest.mark.parametrize("text", ["1, 0", "-1", "1, nan", "inf", ", ".join("1" * 17)])
def test_false_speeds_are_refused(text):
    with pytest.raises(InputFault, match="unequal speed"):
        form.parameters_of("m", 4, "throughput", None, None, text)


def test_speeds_say_how_many_devices_there_are():
    found = form.parameters_of("m", 4, "throughput", None, None, "1; 2,3")
    assert (found.stages, found.time_factors, found.link_gb_per_s) == (3, (1.0, 2.0, 3.0), None)


def test_the_job_stores_one_study_and_forgets_the_last(workspace):
    stored(workspace, encoder(4), timed(encoder(4)))
    partition_job(workspace, PartitionParameters(NAME, 4), ignore_progress)
    assert named_results.partition_names(workspace, NAME) == tuple(f"{NAME} in {k}" for k in (1, 2, 3, 4))
    partition_job(workspace, PartitionParameters(NAME, time_factors=(1.0, 2.0)), ignore_progress)
    assert named_results.partition_names(workspace, NAME) == (f"{NAME} in 2",)
    study = cuts.load_study(workspace, NAME, "encoder")
    assert study is not None and study.devices.time_factors == (1.0, 2.0)
    assert all(candidate.devices for candidate in study.candidates)
    assert cuts.load_study(workspace, NAME, "another") is None


def test_the_best_is_shown_with_its_proof_and_every_cut_ranked(page, cut):
    opened = page("partition", cut)
    pareto = pareto_candidates(provider_of(cut), stages=(1, 2, 3), link_gb_per_s=LINK)
    best = pareto.candidates[0]
    study = cuts.load_study(cut, NAME, "encoder")
    assert study is not None and study.choice == pareto.candidates  # as the command numbers them
    shown = metrics(opened)
    assert float(shown[f"Slowest stage, of {len(best.stages)}"].split()[0]) == pytest.approx(
        best.max_load_ms, rel=5e-3
    )
    badges = said(opened)
    assert "best proven optimal" in badges and "times measured on" in badges
    assert "a link of 0.001 GB/s" in badges
    table = candidates(opened)
    assert next(iter(table["drawn"])) == "●" and list(table["drawn"]).count("●") == 1
    assert set(table["beaten by another"]) == {"no"}
    assert list(table["slowest stage, ms"]) == sorted(table["slowest stage, ms"])
    assert table["stages"].nunique() == 3
    opened.toggle[0].set_value(True).run()
    assert "yes" in set(candidates(opened)["beaten by another"])


def test_another_cut_is_chosen_by_its_row_or_dot_and_drawn(page, cut, mounted, select):
    study = cuts.load_study(cut, NAME, "encoder")
    assert study is not None
    whole = next(candidate for candidate in study.candidates if len(candidate.stages) == 1)
    page("partition", cut)
    select("partition-front", points=[{"customdata": [cuts.key_of(whole)]}])
    opened = page("partition", cut)
    assert "Slowest stage, of 1" in metrics(opened) and metrics(opened)["Crosses the cuts"] == "nothing"
    row = list(candidates(opened)["stages"]).index(2)
    select("partition-table", rows=[row])
    assert "Slowest stage, of 2" in metrics(page("partition", cut))
    two = next(candidate for candidate in study.choice if len(candidate.stages) == 2)
    stage = open_model(cut, NAME).stages
    assert {name for name, at in stage.items() if at == 1} == set(two.stages[1])


def test_a_selected_value_is_tried_at_once_and_kept_beside_the_best(page, cut, mounted, called_back):
    opened = page("partition", cut)
    assert mounted[-1]["data"]["overlay"] == "stage"
    called_back(opened, "on_selection", selection={"node": "add0", "item": "node:add0"})
    own = cut_behind(provider_of(cut), ["add0"], link_gb_per_s=LINK)
    facts = "".join(element.proto.body for element in opened.get("html")).replace("\u202f", " ")
    assert "yours is" in facts and "slower" in facts
    press(opened, "Keep this cut")
    assert cuts.user_values(cut, NAME, encoder(4)) == ("add0",)
    opened = page("partition", cut)
    assert float(metrics(opened)["Slowest stage, of 2"].split()[0]) == pytest.approx(
        own.max_load_ms, rel=5e-3
    )
    assert "above the best found" in said(opened)
    assert "One value crosses: add0 of layers.0" in said(opened)
    press(opened, "Drop add0")
    assert cuts.user_values(cut, NAME, encoder(4)) == ()


def test_a_value_that_cannot_end_a_stage_says_so(page, cut):
    cuts.set_user_values(cut, NAME, ["head"])
    opened = page("partition", cut)
    assert "nothing is computed behind 'head'" in said(opened) and "Slowest stage, of 3" in metrics(opened)


def test_the_choice_and_the_own_cut_are_offered_to_the_planner(page, cut, started):
    cuts.set_user_values(cut, NAME, ["add0"])
    study = cuts.load_study(cut, NAME, "encoder")
    assert study is not None
    several = [one for one in study.choice if len(one.stages) > 1]
    opened = page("partition", cut)
    press(opened, f"Offer {len(several) + 1} cuts to the planner")
    (name,) = (artifact.name for artifact in cut.artifacts("plan_request"))
    variants = cut.get("plan_request", name).models[0].variants
    assert cut.get("plan_request", name).link_gb_per_s == study.devices.link_gb_per_s == LINK
    assert len(variants) == len(several) + 2 and len(variants[0].stages) == 1
    assert started[-1][0] == PLAN
    (offered,) = cuts.offers(cut)
    assert cut_behind(provider_of(cut), ["add0"], link_gb_per_s=LINK) in offered.candidates
    cuts.forget(cut, NAME)
    assert cut.artifacts("partition") == ()


def test_a_memory_that_fits_nothing_says_why(page, workspace):
    stored(workspace, encoder(4), timed(encoder(4)))
    partition_job(workspace, PartitionParameters(NAME, 2, memory_bytes=10), ignore_progress)
    opened = page("partition", workspace)
    assert "No cut was found" in said(opened) and "bytes" in said(opened) and not opened.metric


def test_memory_is_gib_as_on_the_command_line_and_a_stored_limit_keeps_its_bytes(page, workspace, started):
    stored(workspace, encoder(4), timed(encoder(4)))
    limit = 2_500_000_123
    partition_job(workspace, PartitionParameters(NAME, 2, memory_bytes=limit), ignore_progress)
    opened = page("partition", workspace)
    assert opened.number_input[2].label == "Memory of a stage at most, GiB"
    assert "at most 2.33 GiB in a stage" in said(opened)
    press(opened, "Find cuts")
    assert started[0][1].memory_bytes == limit
    study = cuts.load_study(workspace, NAME, "encoder")
    assert study is not None and study.devices.memory_bytes == limit
    command = next(element.value for element in opened.code if "--memory" in element.value)
    given = command.split("--memory ")[1].split()[0]
    assert int(float(given) * 2**30) == limit
    assert form.parameters_of("m", 4, "throughput", None, 1.5, "").memory_bytes == 3 * 2**29


def test_reasons_are_sentences(cut):
    provider = provider_of(cut)
    (point,) = cut_reasons(provider, cut_behind(provider, ["add1"]))
    assert describe_reason(point, provider).startswith("One value crosses: add1 of layers.1, 1.02")
    (inside,) = cut_reasons(provider, cut_behind(provider, ["query1"]))
    text = describe_reason(inside, provider)
    assert text.startswith("2 values cross: add0") and "runs through the region from add0 to add1" in text


def dot(key: str, parts: int, crossing: int, value: float, **more: bool) -> CutDot:
    return CutDot(key, parts, crossing, value, 5, **more)


def test_the_chart_joins_what_no_other_beats_and_marks_the_chosen():
    found = [
        dot("w", 1, 0, 10.0),
        dot("a", 2, 2_000_000, 6.0, chosen=True),
        dot("b", 2, 3_000_000, 7.0, dominated=True),
    ]
    figure = pareto_front(
        [*found, dot("own", 2, 4_000_000, 8.0, by_user=True)], 5.0, "slowest stage", dark=False
    )
    line = next(trace for trace in figure.data if trace.mode == "lines")
    assert list(line.x) == [0, 2] and list(line.y) == [10, 6]
    named_results = {
        trace.name: trace for trace in figure.data if trace.mode == "markers" and trace.customdata is not None
    }
    assert set(named_results) == {"whole", "2 stages", "your cut"}
    # The legend has marks of its own: of points with several opacities it would show the mean.
    listed = [trace for trace in figure.data if trace.mode == "markers" and trace.showlegend is not False]
    assert [trace.name for trace in listed] == ["whole", "2 stages", "your cut"]
    assert all(trace.marker.opacity is None and trace.x == (None,) for trace in listed)
    assert figure.layout.legend.yref == "container" and figure.layout.margin.b >= 60
    two = named_results["2 stages"]
    assert [row[0] for row in two.customdata] == ["a", "b"] and list(two.marker.line.width) == [3, 1]
    assert two.marker.opacity[0] == 1.0 > two.marker.opacity[1]
    assert figure.layout.shapes[0].y0 == 5.0 and "MB" in figure.layout.xaxis.title.text


def test_the_bars_are_time_and_transfers():
    figure = bars(
        [("chosen", [StageBar("stage 1", 0, 4.0, 1.0), StageBar("stage 2", 1, 5.0, 0.0)])], 4.5, dark=True
    )
    assert [list(trace.x) for trace in figure.data] == [[4.0, 5.0], [1.0, 0.0]]
    assert figure.layout.barmode == "stack" and figure.layout.shapes[0].x0 == 4.5
