"""The models of a scenario as rows: demand, limit, minimum, weight and cap, folded the limits of the response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from app.components.field_rows import REMOVE, RESTORE, Column, Edit, Row, field_rows
from app.plans.inputs import llms
from app.plans.inputs.draft_editor import DraftEditor, check
from app.plans.inputs.fields import FACTORS, build_row, match_items, number, restore_item, whole_number
from torchsplit_core.pictures.numbers import THIN, exact, short, size
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.colocation_index import colocated_models
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.simulation.validate import check_arrivals
from torchsplit_core.values import PlanModel, PlanRequest, Profile, SimulationRequest, TraceArrivals, Variant
from torchsplit_core.values.simulation.arrivals_text import arrivals_text, parse_arrivals
from torchsplit_core.values.simulation.request import Arrivals

PERCENTILE = 95.0
"""The percentage of responses within the limit, by default."""
COLUMNS = (
    Column(
        "demand_rps", "demand, req/s", width="4.2rem", slider=True, help="Requests per second asked for."
    ),
    Column(
        "max_latency_ms", "p95 ≤, ms", width="3.6rem", empty="none",
        help="Limit of the service time: p95 of one batch, without waiting. Empty: no limit.",
    ),
    Column(
        "min_throughput_rps", "min, req/s", width="3.5rem", empty="none",
        help="Minimum: a plan that serves less is refused. Empty: no minimum.",
    ),
    Column("weight", "weight", width="2.6rem"),
    Column(
        "tier", "tier", width="2.2rem",
        help="Models of a higher tier are served up to their demand before those of a lower one. Empty: 0.",
    ),
    Column("cap_at_demand", "cap", "check", "1.5rem", help="Throughput above the demand counts for nothing."),
)  # fmt: skip
MORE = (
    Column(
        "max_response_ms", "response ≤, ms", quarters=2, empty="none",
        help="Limit of what clients wait, queues included. The plan is simulated before it is shown.",
    ),
    Column(
        "response_percentile", "of responses, %", quarters=2,
        help="Percentage of responses that must be within the limit.",
    ),
    Column(
        "arrivals", "arrivals", "text", quarters=4, empty="poisson at the demand",
        help="poisson, deterministic, gamma:2 (cv) or mmpp:0.5@8,3@2 (times the demand @ seconds), “ at 30” for "
        "another rate.",
    ),
    Column("ways", "ways to run", "choices", quarters=4, help="A plan uses one of those allowed."),
)  # fmt: skip
LABELS = {column.id: column.label for column in (*COLUMNS, *MORE)}
NOT_OF_LLMS = ("max_latency_ms", "max_response_ms", "response_percentile", "arrivals", "ways")
"""Fields in whose place an LLM has those of its requests and tokens."""


def render(
    editor: DraftEditor, names: Sequence[str], served: Mapping[str, float], colours: Mapping[str, str]
) -> None:
    """A row for each model of these `names`. `served` has the requests/s of the plan on screen by model."""
    stored, current = (
        {model.name: model for model in request.models} for request in (editor.stored, editor.current)
    )
    rows = [
        _row(editor, current[name], stored.get(name), served.get(name), colours)
        if name in current
        else Row(name, name, name=name, colour=colours.get(name, ""), state="gone")
        for name in names
    ]
    apply = partial(apply_edits, editor)
    # Without an LLM its columns are none of the rows'.
    more = (*MORE, *(llms.COLUMNS if any(model.llm for model in current.values()) else ()))
    field_rows("Models", COLUMNS, rows, key=editor.key("models"), more=more, named=True, on_edits=apply)


def apply_edits(editor: DraftEditor, edits: Sequence[Edit]) -> None:
    """Apply edits of models to the draft."""
    editor.apply_edits("models", edits, partial(apply_edit, editor.stored))


def add(editor: DraftEditor, profiles: Mapping[str, Profile]) -> None:
    """A choice among the profiled models that the request does not have, if there are any."""
    # A removed model is restored in its row, not here.
    taken = {*all_names(editor)}
    known = (*editor.stored.models, *editor.current.models)
    more = [
        name
        for name, profile in profiles.items()
        if name not in taken and not any(edit.is_model_of(model, profile) for model in known)
    ]
    if not more:
        return
    options = [(name, name) for name in more]
    column = Column("model", "Add a model", "choice", quarters=4, empty="Add a model …", options=options)
    blank = Row(f"new {len(taken)}", "models profiled here", {"model": ""}, state="blank")

    def added(request: PlanRequest, field_edit: Edit) -> PlanRequest:
        return edit.with_models(request, [str(field_edit.value["model"])], profiles)

    apply = partial(editor.apply_edits, "more models", change=added)
    field_rows("Add a model", (column,), [blank], key=editor.key("more models"), stacked=True, on_edits=apply)


def all_names(editor: DraftEditor) -> tuple[str, ...]:
    """The models of both requests, removed ones at their old place."""
    before, now = ([model.name for model in request.models] for request in (editor.stored, editor.current))
    return tuple(
        now[match.current] if match.current is not None else before[match.stored or 0]
        for match in match_items(before, now)
    )


def apply_edit(stored: PlanRequest, request: PlanRequest, field_edit: Edit) -> PlanRequest:
    """The request with one edit of a model; an edit of a model that is gone changes nothing."""
    models = list(request.models)
    at = next((place for place, model in enumerate(models) if model.name == field_edit.row), None)
    if field_edit.field == RESTORE and at is None:
        before, now = ([model.name for model in plan_request.models] for plan_request in (stored, request))
        if field_edit.row not in before:
            return request
        known, matches = before.index(field_edit.row), match_items(before, now)
        place = next(place for place, match in enumerate(matches) if match.stored == known)
        return replace(request, models=restore_item(models, stored.models[known], matches, place))
    if at is None or (field_edit.field == REMOVE and len(models) == 1):
        return request
    if field_edit.field == REMOVE:
        del models[at]
        left, pairs = {model.name for model in models}, request.colocations
        pairs = tuple(pair for pair in pairs if left.issuperset(colocated_models(request.models, pair)))
        return replace(request, models=tuple(models), colocations=pairs)
    models[at] = _apply_field(models[at], field_edit)
    edited = replace(request, models=tuple(models))
    # Tiers are checked across all models.
    seen = models if field_edit.field == "tier" else (models[at],)
    return check(edited, LABELS.get(field_edit.field, field_edit.field), seen)


def variant_label(variant: Variant) -> str:
    """A variant in words: its name, its number of stages, and the bytes across its cuts."""
    if len(variant.stages) == 1:
        return variant.name
    fixed, each = sum(variant.cut_bytes), sum(variant.cut_bytes_per_request)
    carried = [size(fixed)] if fixed or not each else []
    carried += [f"{size(each)} a request"] if each else []
    across = " and ".join(carried)
    return f"{variant.name}: {len(variant.stages)} stages, {across} across cuts"


def _row(
    editor: DraftEditor,
    model: PlanModel,
    was: PlanModel | None,
    rps: float | None,
    colours: Mapping[str, str],
) -> Row:
    demand = model.demand_rps
    share = rps / demand if rps is not None and demand else None
    last = len(editor.current.models) == 1
    return build_row(
        editor, "models", model.name, model.name, (*COLUMNS, *MORE, *llms.COLUMNS), _values(model),
        _values(was) if was else None,
        name=model.name, colour=colours.get(model.name, ""), remove="" if last else f"Remove {model.name}",
        note="" if share is None else f"{short(share)}{THIN}×",
        below=share is not None and share < 1 and not equal(share, 1.0),
        stops={"demand_rps": demand_stops(demand, was.demand_rps if was else demand)},
        locked=() if model.llm is None else ("max_latency_ms",),
        options={"ways": [(variant.name, variant_label(variant)) for variant in model.variants]},
    )  # fmt: skip


def demand_stops(now: float, base: float) -> list[tuple[float, str]]:
    """The stops of the slider of a demand; `base` is the stored one."""
    # A typed value may be between the steps or beyond them.
    steps = sorted({base, now, *(float(f"{base * factor:.6g}") for factor in FACTORS)})
    return [(step, exact(step)) for step in steps]


def _values(model: PlanModel) -> dict[str, Any]:
    fields = [column.id for column in (*COLUMNS, *MORE) if column.id not in ("arrivals", "ways")]
    if model.llm is not None:
        shown = {name: getattr(model, name) for name in fields if name not in NOT_OF_LLMS}
        return shown | {"max_latency_ms": None} | llms.values(model.llm)
    values = {name: getattr(model, name) for name in fields}
    values["arrivals"] = arrivals_text(model.arrivals, model.demand_rps)
    if len(model.variants) > 1:
        values["ways"] = [variant.name for _, variant in model.allowed_variants]
    return values


def _apply_field(model: PlanModel, field_edit: Edit) -> PlanModel:
    label = LABELS.get(field_edit.field, field_edit.field)
    if model.llm is not None and field_edit.field in llms.LABELS:
        return replace(model, llm=llms.apply_field(model.llm, field_edit))
    if model.llm is not None and field_edit.field in NOT_OF_LLMS:
        return model
    if field_edit.field == "demand_rps":
        demand = number(field_edit.value, label, needed=True) or 0.0
        return replace(model, demand_rps=demand, arrivals=_scale_arrivals(model, demand))
    if field_edit.field == "arrivals":
        return replace(model, arrivals=_arrivals(model, str(field_edit.value).strip(), label))
    if field_edit.field == "cap_at_demand":
        return replace(model, cap_at_demand=bool(field_edit.value))
    if field_edit.field == "tier":
        tier = whole_number(field_edit.value, label) if str(field_edit.value).strip() else 0
        return replace(model, tier=tier)
    if field_edit.field == "ways":
        allowed = field_edit.value
        variants = (replace(variant, allowed=variant.name in allowed) for variant in model.variants)
        return replace(model, variants=tuple(variants))
    if field_edit.field not in LABELS:
        return model
    empty = PERCENTILE if field_edit.field == "response_percentile" else None
    value: Any = number(field_edit.value, label, empty=empty, needed=field_edit.field == "weight")
    return replace(model, **{field_edit.field: value})


def _scale_arrivals(model: PlanModel, demand: float) -> Arrivals | None:
    """The arrivals at another demand, scaled unless they have a rate of their own."""
    text = arrivals_text(model.arrivals, model.demand_rps)
    if not text or isinstance(model.arrivals, TraceArrivals) or demand <= 0:
        return model.arrivals
    return parse_arrivals(text, demand, LABELS["arrivals"])


def _arrivals(model: PlanModel, text: str, label: str) -> Arrivals | None:
    if not text:
        return None
    if text == arrivals_text(model.arrivals, model.demand_rps):
        return model.arrivals
    parsed = parse_arrivals(text, model.demand_rps, label)
    check_arrivals(label, parsed, SimulationRequest((), ()).requests_per_model)
    return parsed
