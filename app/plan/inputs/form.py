"""The left column of the Plan page: fleet, models, pairs and objective, which all write into the scenario's draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pandas as pd
import streamlit as st

from app.format.numbers import THIN, plain
from app.plan import figures
from app.plan.draft import words
from app.plan.inputs import request_tables
from app.plan.inputs.edits import Edits, Goal, Speeds, limit_s
from app.plan.summary import OBJECTIVES, PLAN_AT, SHARINGS
from app.plan.what_if import sliders
from app.session import draft as drafts
from app.session.draft import Draft, stored_profiles
from app.shell import frame
from app.shell.replan import plan_again
from torchsplit_core.hardware import catalogue, without_mig
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.coverage import uncovered
from torchsplit_core.planning.request.difference import Part, RequestChange
from torchsplit_core.planning.request.ties import member_names
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Profile
from torchsplit_core.workspace.store import Workspace

Column = st.column_config


MOST_ROWS = 16
"""Models with a slider in a row of their own; of more one is chosen."""


def show(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft | None, shown: PlanOutcome | None
) -> None:
    """The editors over the stored request, with what the draft changes of it; edits go into the draft at once.

    `shown` is the plan on screen: what each model gets of it stands beside its demand.
    """
    if (
        draft is not None
        and _fleet_key(drafts.table_mark(workspace, name, draft.seed)) not in st.session_state
    ):
        draft = drafts.drawn_anew(workspace, name, draft)
    request = drafts.seed(draft, stored)
    current = draft.request if draft else stored
    changed = drafts.changes(draft, stored) if draft else ()
    ground = sliders.Ground.of(workspace, name, stored, current)
    # Edits of the tables stay in them: they are drawn anew where the draft was changed by something else.
    mark = drafts.table_mark(workspace, name, request)
    # Asked of the store once.
    known = stored_profiles(workspace)
    profiles = edit.profiles_by_model(known)
    with st.container(border=True, key="inputs-fleet"):
        st.header("Fleet", anchor=False)
        fleet = _fleet(request, mark)
        missing = st.container(key="figures-missing")
        _struck(changed, "fleet")
        sliders.of_fleet(ground)
        with st.expander("Ids, nodes, costs, layouts, links", key="fleet-details"):
            details = _details(request, mark)
            speeds = _links(request, mark)
        _struck(changed, "links")
    with st.container(border=True, key="inputs-models"):
        st.header("Models", anchor=False)
        _demands(ground, shown)
        _struck(changed, "models")
        with st.expander("Limits, minima, weights", key="models-details"):
            models, added = _models(request, mark, profiles)
            _weight(ground)
        allowed = _ways(request, mark)
    with st.container(border=True, key="inputs-pairs"):
        st.header("Together on one GPU", anchor=False)
        pairs = _pairs(request, mark)
        _struck(changed, "pairs")
    with st.container(border=True, key="inputs-objective"):
        st.header("Objective", anchor=False)
        goal = _objective(request, mark)
        _struck(changed, "objective")
    edits = Edits(fleet, details, speeds, models, added, profiles, allowed, pairs, goal)
    _take_over(workspace, name, stored, request, edits)
    with missing:
        own = edit.profiles_of(current, known)
        figures.show(workspace, name, stored, _with_figures(current, own), own)


def _demands(ground: sliders.Ground, shown: PlanOutcome | None) -> None:
    """A slider for the demand in the row of each model, with what it gets; of many models that of one."""
    names = [model.name for model in ground.current.models]
    if not names:
        st.caption("Add a model first.")
    if len(names) > MOST_ROWS:
        names = [_chosen(names, f"what-if-demand {ground.name}", "Whose demand this is.")]
    served = {model.name: model.throughput_rps for model in shown.models} if shown else {}
    for model in names:
        sliders.demand_of(ground, model, served)


def _weight(ground: sliders.Ground) -> None:
    """The weight of the model that is chosen."""
    names = [model.name for model in ground.current.models]
    if names:
        sliders.weight_of(ground, _chosen(names, f"what-if-model {ground.name}", "Whose weight this is."))


def _chosen(names: list[str], key: str, about: str) -> str:
    found: str = st.selectbox("Model", names, key=key, label_visibility="collapsed", help=about)
    return found


def _take_over(
    workspace: Workspace, name: str, stored: PlanRequest, request: PlanRequest, edits: Edits
) -> None:
    """Write what the editors hold into the draft, and draw the page again where that is news."""
    try:
        edited = edits.applied(request) if edits.waiting(request) else request
    except InputFault as fault:
        news = drafts.tell_fault(workspace, name, stored, str(fault))
    else:
        news = drafts.change_by_table(workspace, name, stored, edited)
    if news:
        # As it is made: the next run may be another page's.
        drafts.save(workspace, name)
        st.rerun()


def _struck(changed: Sequence[RequestChange], part: Part) -> None:
    """Where it stands: the old value of what the draft changes, struck out, and the new one."""
    if told := words.struck(changed, part):
        st.html(told)


def _with_figures(request: PlanRequest, profiles: Mapping[str, Profile]) -> PlanRequest:
    """The request with the figures that a plan would take from the workspace; most have all they need."""
    return edit.with_points(request, profiles, ()) if uncovered(request) else request


def _editor(
    table: pd.DataFrame,
    key: str,
    alt: str,
    columns: Mapping[str, Any],
    rows: Literal["dynamic", "fixed", "delete"],
    locked: Sequence[str] = (),
) -> pd.DataFrame:
    """A table that is edited in the page."""
    edited: pd.DataFrame = st.data_editor(
        table, num_rows=rows, hide_index=True, key=key, alt=alt, disabled=list(locked), column_config=dict(columns),
    )  # fmt: skip
    return edited


def _fleet(request: PlanRequest, mark: str) -> pd.DataFrame:
    columns = {
        "type": Column.SelectboxColumn("GPU type", options=_types(request), required=True, width=165),
        "count": Column.NumberColumn("count", min_value=1, step=1, required=True, default=1, width=60),
    }
    about = "GPU types of the fleet and how many of each"
    return _editor(request_tables.fleet_table(request), _fleet_key(mark), about, columns, "dynamic")


def _fleet_key(mark: str) -> str:
    return f"fleet-{mark}"


def _details(request: PlanRequest, mark: str) -> pd.DataFrame:
    """Ids, nodes, costs and layouts of the stored entries; rows that are new above have theirs once planned."""
    columns = {
        "type": Column.TextColumn("GPU type", width=110),
        "id": Column.TextColumn("id", width=90, help="A GPU with an id stands once. Empty: gpu0, gpu1, …"),
        "node": Column.TextColumn("node", width=80, help="GPUs of one node share its link."),
        "cost": Column.NumberColumn("cost", min_value=0.0, width=60, help="Of each; counts for fewest GPUs."),
        "layouts": Column.TextColumn(
            "layouts", width=220, help="For example 7x1g.10gb/3g.40gb+4g.40gb. Empty: every legal one."
        ),
    }
    about = "Ids, nodes, costs and layouts of the fleet's rows"
    table = request_tables.details_table(request)
    edited = _editor(table, f"details-{mark}", about, columns, "fixed", ["type"])
    st.caption("A row added above has its own here once it is planned.")
    return edited


def _links(request: PlanRequest, mark: str) -> Speeds:
    """How fast the stages of a cut model hand on what crosses its cuts."""
    left, right = st.columns(2)
    with left:
        link = _speed(
            f"Link, in{THIN}GB/s",
            request.link_gb_per_s,
            f"link-{mark}",
            "free",
            "Between the stages of a cut model, in 10⁹ bytes a second. Empty: transfers take no time.",
        )
    with right:
        network = _speed(
            f"Network, in{THIN}GB/s",
            request.network_gb_per_s,
            f"network-{mark}",
            "as the link",
            "Holds for a cut model whose stages stand on GPUs of several nodes, where it is the slower one.",
        )
    return link, network


def _speed(label: str, value: float | None, key: str, empty: str, about: str) -> float | None:
    """A number of GB/s or nothing. A default other than nothing would come back whenever the field is emptied."""
    if key not in st.session_state:
        st.session_state[key] = value
    return st.number_input(label, min_value=0.0, value=None, key=key, placeholder=empty, help=about)


def _types(request: PlanRequest) -> list[str]:
    """What a fleet is made of: GPUs with MIG and without, and the hosts that the request has."""
    return list(dict.fromkeys([*catalogue(), *without_mig(), *(entry.type for entry in request.gpus)]))


def _pairs(request: PlanRequest, mark: str) -> pd.DataFrame:
    used = [name for pair in request.colocations for name in pair.models]
    columns = {
        "models": Column.MultiselectColumn(
            "models",
            options=list(dict.fromkeys([*member_names(request.models), *used])),
            required=True,
            width=110,
            help="Models, or stages of cut ones.",
        ),
        "mode": Column.SelectboxColumn(
            "mode", options=list(request_tables.TOGETHER.values()), default="must", required=True, width=70
        ),
        "megabytes": Column.NumberColumn(
            "MB",
            min_value=0.0,
            width=50,
            help="Megabytes a request sends between the two when they are apart.",
        ),
    }
    about = "Models that must or would rather share a GPU"
    return _editor(request_tables.pairs_table(request), f"pairs-{mark}", about, columns, "dynamic")


def _models(
    request: PlanRequest, mark: str, profiles: Mapping[str, Profile]
) -> tuple[pd.DataFrame, list[str]]:
    columns = {
        "model": Column.TextColumn("model", width=105),
        "demand": Column.NumberColumn(
            "demand", format="%.6g", width=78, help="Requests per second asked for."
        ),
        "limit": Column.NumberColumn(
            "p95 ≤, ms",
            format="%.6g",
            width=88,
            help="Limit of the service time: p95 of one batch, waits apart. Empty: no limit.",
        ),
        "response": Column.NumberColumn(
            "response ≤, ms",
            format="%.6g",
            width=115,
            help="Limit of what clients wait, queues included. The plan is simulated before it is shown. Empty: none.",
        ),
        "percentile": Column.NumberColumn(
            "of responses, %", format="%.6g", width=115, help="So many of a hundred are within it."
        ),
        "arrivals": Column.TextColumn(
            "arrivals",
            width=90,
            help="How requests come where responses are limited: poisson, deterministic, gamma:2 (cv) or "
            "mmpp:0.5@8,3@2 (times the demand @ seconds), “ at 30” for another rate. Empty: poisson at the demand.",
        ),
        "least": Column.NumberColumn(
            "min, req/s",
            format="%.6g",
            width=95,
            help="Minimum: a plan that serves less is refused. Empty: no minimum.",
        ),
        "weight": Column.NumberColumn("weight", format="%.6g", width=65),
        "cap": Column.CheckboxColumn("cap", width=50, help="Throughput above the demand counts for nothing."),
    }
    table = request_tables.models_table(request)
    models = _editor(table, f"models-{mark}", "What each model asks for", columns, "delete", ["model"])
    taken = {model.name for model in request.models}
    more = [
        found
        for found, profile in profiles.items()
        if found not in taken and not any(edit.is_of(model, profile) for model in request.models)
    ]
    added: list[str] = []
    if more:
        added = st.multiselect("Add models", more, key=f"added-{mark}", placeholder="profiled here")
    return models, added


def _ways(request: PlanRequest, mark: str) -> dict[str, list[str]]:
    """The variants allowed, of each model that has several."""
    several = edit.several_ways(request)
    if not several:
        return {}
    out = sum(not variant.allowed for model in several for variant in model.variants)
    with st.expander("Ways to run" + (f" ({out} not allowed)" if out else ""), key="ways"):
        found = {}
        for model in several:
            words = {variant.name: request_tables.way_label(variant) for variant in model.variants}
            found[model.name] = st.multiselect(
                plain(model.name), list(words), [variant.name for _, variant in model.allowed_variants],
                format_func=words.__getitem__, key=f"ways-{mark}-{model.name}", placeholder="allow at least one",
            )  # fmt: skip
        st.caption("A plan uses one way of each model. What is taken out stays in the request.")
    return found


def _objective(request: PlanRequest, mark: str) -> Goal:
    kinds, ways = list(OBJECTIVES), list(SHARINGS)
    kind = st.selectbox(
        "What is best",
        kinds,
        kinds.index(request.objective.kind),
        format_func=OBJECTIVES.__getitem__,
        key=f"kind-{mark}",
    )
    sharing = st.selectbox(
        "Slices", ways, ways.index(request.sharing), format_func=SHARINGS.__getitem__, key=f"sharing-{mark}"
    )
    limit = st.number_input(
        f"Search at most, in{THIN}s",
        1.0,
        3600.0,
        limit_s(request),
        5.0,
        key=f"limit-{mark}",
    )
    ends = list(PLAN_AT)
    plan_at = st.radio(
        "Plan at",
        ends,
        ends.index(request.solver.plan_at),
        format_func=PLAN_AT.__getitem__,
        horizontal=True,
        key=f"plan-at-{mark}",
        help="Low end: with the lower ends of the throughputs' 90 % intervals.",
    )
    return Goal(kind, sharing, float(limit), plan_at, *_means(request, mark))


def _means(request: PlanRequest, mark: str) -> tuple[int | None, float | None, float]:
    """Most tenants a slice, and what memory and separation cost."""
    with st.expander("Tenants and penalties", key="means"):
        most = st.number_input(
            "Tenants of a slice, at most", 1, None, request.max_tenants_per_slice, 1,
            key=f"tenants-{mark}", placeholder="no limit",
        )  # fmt: skip
        penalty = st.number_input(
            "Penalty γ for each GiB too much", 0.0, None, request.objective.memory_violation_penalty, format="%g",
            key=f"penalty-{mark}", placeholder="memory is a limit",
        )  # fmt: skip
        weight = st.number_input(
            "Weight of a byte between models apart", 0.0, None, request.objective.separation_weight, format="%g",
            key=f"separation-{mark}", help="0: separations break ties.",
        )  # fmt: skip
    return most, penalty, weight


def first_request(workspace: Workspace) -> None:
    """Where there are profiles but no request: choose a fleet and make one."""
    profiles = edit.profiles_by_model(stored_profiles(workspace))
    chosen = st.multiselect("Models to serve", list(profiles), list(profiles))
    left, right = st.columns(2)
    kinds = list(catalogue())
    kind = left.selectbox("GPU type", kinds, kinds.index("A100-80GB"))
    count = right.number_input("How many", 1, 4096, 2)
    if st.button("Plan these models", type="primary"):
        with frame.telling():
            request = edit.new_request(chosen, profiles, str(kind), int(count))
            plan_again(workspace, "plan", request)
