"""The report of a plan: everything in one file, nothing loaded, nothing executed."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from app.charts.points_svg import points_svg
from app.plans.report import report
from benchmarks.planner_instances import instance
from tests.support.app.values import plan, request
from torchsplit_core import workflow
from torchsplit_core.cli.plan_summary import summary_lines
from torchsplit_core.files import write_text
from torchsplit_core.values import Conflict, Demand, PlannedGpu, PlannedModel, Point, Relaxation

COLOURS = {"bert": "#3f66cc", "ocr": "#e2a11c"}
HOSTILE = '<img src=x onerror="alert(1)">&"\''


class Page(HTMLParser):
    """Tags with their attributes, and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def said(self) -> str:
        return " ".join(self.texts).replace("\u202f", " ")


def test_it_says_what_the_plan_costs_and_which_tier_comes_first():
    first, *others = request().models
    asked = replace(
        request(),
        gpus=tuple(replace(entry, cost=2.5) for entry in request().gpus),
        models=(replace(first, tier=2), *others),
    )
    outcome = workflow.plan(asked)
    page = Page(report("review", asked, outcome, COLOURS))
    assert outcome.cost_per_hour and f"Cost {outcome.cost_per_hour:g} an hour, " in page.said
    assert "per million requests served." in page.said
    assert "By tier, the highest first: tier 2 at least" in page.said
    assert page.said.count(" tier ") >= 2
    assert "an hour" not in Page(report("review", request(), plan(), COLOURS)).said
    told = "\n".join(summary_lines(asked, outcome))
    assert f"cost {outcome.cost_per_hour:g} an hour" in told and "by tier, the highest first: tier 2" in told


def test_the_file_has_map_tables_curves_times_and_proof_and_loads_nothing():
    page = Page(report("review", request(), plan(), COLOURS))
    for words in (
        "proven optimal", "1 of 2 profiles estimated", "Worst-served model gets", "1.5 × its demand",
    ):  # fmt: skip
        assert words in page.said
    assert "No plan is better: every level of the objective is proven." in page.said
    assert "Of the points behind it, 2 measured, 2 estimated." in page.said
    assert [tag for tag, _ in page.tags].count("figure") == 2
    compact = "\n".join(line.strip() for line in write_text(request()).splitlines())
    assert compact in page.texts
    circles = [a for tag, a in page.tags if tag == "circle"]
    assert sum(a["fill"] == "none" for a in circles) == 2 and len(circles) == 4
    at = page.said.index("Under load, simulated")
    told = page.said[at : page.said.index("What is proven, what is estimated")]
    assert told.count("±") == 7 and "else Poisson at each model's demand" in told
    assert "nothing here was measured under load" in told and "estimated for 1 of 2 models" in told
    crowded = tuple(replace(model, demand_rps=350.0) for model in request().models)
    more = Page(report("review", replace(request(), models=crowded), plan(), COLOURS)).said
    assert "n/a for ocr: more arrives than can be served" in more
    assert "Under load" not in Page(report("review", None, plan(), COLOURS)).said
    assert not {"script", "link", "iframe", "object", "embed", "img", "base", "form"} & {
        tag for tag, _ in page.tags
    }
    for _, attributes in page.tags:
        assert not {
            name for name in attributes if name.startswith("on") or name in ("src", "href", "xlink:href")
        }
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_text_of_a_user_is_escaped():
    asked = request()
    models = (replace(asked.models[0], name=HOSTILE), *asked.models[1:])
    told = plan(asked)
    tenant = replace(told.gpus[0].slices[0].tenants[0], model=HOSTILE, variant=HOSTILE, stage=HOSTILE)
    slices = (replace(told.gpus[0].slices[0], tenants=(tenant,)), told.gpus[0].slices[1])
    told = replace(
        told, gpus=(replace(told.gpus[0], id=HOSTILE, slices=slices),),
        models=(replace(told.models[0], name=HOSTILE, variant=HOSTILE), told.models[1]), warnings=(HOSTILE,),
    )  # fmt: skip
    page = Page(report(HOSTILE, replace(asked, models=models), told, {HOSTILE: "#3f66cc"}))
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in page.tags)
    assert page.said.count("onerror") >= 5


def test_what_has_no_plan_says_why():
    demands = (Demand("min_throughput_rps", "bert"), Demand("max_latency_ms", "ocr"))
    outcome = replace(
        plan(status="infeasible"), gpus=(), conflicts=(Conflict(demands, "too much"),),
        least_relaxation=(Relaxation("bert", "min_throughput_rps", 19.0, 12.5),),
    )  # fmt: skip
    page = Page(report("review", request(), outcome, COLOURS))
    assert "bert's minimum requests per second; ocr's service-time limit" in page.said
    assert "Would help: Lower bert's minimum requests per second from 19 to 12.5 req/s." in page.said
    assert "Slices" not in page.texts
    alone = Page(report("review", None, plan(), COLOURS))
    assert "basis unknown" in alone.said and "The request" not in alone.texts


@pytest.mark.repeated
@pytest.mark.slow
def test_a_large_plan_stays_a_small_file():
    asked = instance(64, 1024)
    names = [model.name for model in asked.models]
    one = plan().gpus[0]
    gpus = tuple(
        PlannedGpu(
            f"gpu{i}", one.type, True,
            tuple(replace(s, tenants=tuple(replace(t, model=names[i % 64]) for t in s.tenants)) for s in one.slices),
        )
        for i in range(1024)
    )  # fmt: skip
    planned = tuple(PlannedModel(name, "whole", 9.0, 1.8, 20.0) for name in names)
    outcome = replace(plan(), gpus=gpus, models=planned)
    assert len(report("large", asked, outcome, {}).encode()) < 5_000_000


def test_curves_of_nothing_are_nothing_and_a_far_limit_is_not_drawn():
    assert points_svg("m", (), "#3f66cc", None, ()) == ""
    found = [Point("A100-80GB", "1g.10gb", 1, 50.0, 20.0), Point("A100-80GB", "1g.10gb", 2, 80.0, 25.0)]
    assert "limit" not in points_svg("m", found, "#3f66cc", 500.0, ())
    drawn = points_svg("m", found, "#3f66cc", 22.0, found[:1])
    assert "limit 22" in drawn and drawn.count('r="4.5"') == 1 and drawn.count("<polyline") == 1
