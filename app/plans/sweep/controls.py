"""What to vary in a sweep: the parameter, of what, its range; and the start of the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.plans.sweep import formatting
from app.plans.sweep.formatting import PARAMETER_WORDS
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.hardware import catalogue
from torchsplit_core.jobs.job_kinds import SWEEP, SweepParameters
from torchsplit_core.pictures.numbers import THIN, exact
from torchsplit_core.planning.request.validate import MAX_GPUS
from torchsplit_core.planning.sweep import points
from torchsplit_core.planning.sweep.points import COUNTS, MAX_VALUES, PARAMETERS, Parameter, SweepRequest
from torchsplit_core.values import PlanRequest
from torchsplit_core.values.limits import LARGEST_MAGNITUDE
from torchsplit_core.workflow.sweeps import TIME_LIMIT_S
from torchsplit_core.workspace.store import Workspace

FIRST_GPUS, FIRST_STEPS = 8, 8
FIRST_GPU_STEPS = 16
"""A range of GPUs has at most as many points as whole numbers."""


def render(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """The controls and the button; a press starts the sweep."""
    st.header("What to vary", anchor=False)
    left, right = st.columns(2)
    # Without a current state there is nothing to touch, and without an attainment no share to hold.
    missing = {
        "touched_gpus": request.current is None,
        "attainment": request.objective.attainment is None,
    }
    offered = [entry for entry in PARAMETERS if not missing.get(entry)]
    parameter: Parameter = left.selectbox(
        "Parameter", offered, format_func=PARAMETER_WORDS.__getitem__, key=f"sweep-parameter {name}",
        persist_state="session",
    )  # fmt: skip
    target = ""
    if parameter not in points.OF_ALL:
        target = right.selectbox(
            "GPU type" if parameter == "gpus" else "Model", _targets(request, parameter),
            key=f"sweep-target {name} {parameter}", persist_state="session",
        )  # fmt: skip
    places = st.columns(4)
    start, stop, steps = _range(request, parameter, target, f"{name} {parameter} {target}", places)
    limit = places[3].number_input(
        f"Search at most, in{THIN}s", 1.0, 36_000.0, TIME_LIMIT_S, 10.0, key=f"sweep-limit {name}",
        persist_state="session",
        help="Divided evenly among the points, two of which are planned at a time.",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="center"):
        again = st.button("Run the sweep", type="primary", key="sweep-run")
        now = points.present_value(request, parameter, target)
        if now is not None:
            st.caption(f"The scenario has {exact(now, formatting.UNITS[parameter])}.")
    if again:
        with frame.fault_boundary():
            what = SweepRequest(parameter, target, points.spread_values(parameter, start, stop, steps))
            start_sweep(workspace, name, request, what, limit)
            st.rerun(scope="app")


def _targets(request: PlanRequest, parameter: Parameter) -> list[str]:
    """What can vary: the types of the fleet, then other types with points of models; or the models."""
    if parameter != "gpus":
        return [model.name for model in request.models]
    known = {point.gpu_type for model in request.models for point in model.allowed_points}
    fleet = [entry.type for entry in request.gpus]
    return list(dict.fromkeys([*fleet, *(kind for kind in catalogue() if kind in known)]))


def _range(
    request: PlanRequest, parameter: Parameter, target: str, mark: str, places: Sequence[Any]
) -> tuple[float, float, int]:
    """First, last and number of values, around the present value; `mark` is part of the widgets' keys."""
    now = points.present_value(request, parameter, target)
    ends: tuple[Any, ...]
    if parameter == "touched_gpus":
        most = sum(entry.count for entry in request.gpus)
        ends = (0, most, 0, most)
    elif parameter == "attainment":
        ends = (0.001, 1.0, points.SHARES[0], points.SHARES[-1])
    elif parameter == "gpus":
        least = 0 if any(entry.type != target for entry in request.gpus) else 1
        most = min(MAX_GPUS, max(FIRST_GPUS, 2 * int(now or 0)))
        mark += f" from {least}"
        ends = (least, MAX_GPUS, least, most)
    else:
        centre = now or float(next(model.demand_rps for model in request.models if model.name == target))
        low = 0.0 if parameter == "min_throughput" else centre / 4
        ends = (0.0, LARGEST_MAGNITUDE, low, min(centre * 4, LARGEST_MAGNITUDE))
    form = None if parameter in COUNTS else "%.6g"
    start, stop = (
        place.number_input(
            label, ends[0], ends[1], value, format=form, key=f"sweep-{label} {mark}", persist_state="session"
        )
        for place, label, value in zip(places, ("From", "To"), ends[2:], strict=False)
    )
    steps = places[2].number_input(
        "Points", 1, MAX_VALUES, FIRST_GPU_STEPS if parameter in COUNTS else FIRST_STEPS,
        key=f"sweep-steps {mark}", persist_state="session", help="Each is a plan of its own.",
    )  # fmt: skip
    return float(start), float(stop), int(steps)


def start_sweep(
    workspace: Workspace, name: str, request: PlanRequest, what: SweepRequest, time_limit_s: float
) -> str:
    """Sweep the stored request in a job, which ends an earlier sweep of the scenario; its job id.

    Raises InputFault, with nothing started, for a value that the request refuses.
    """
    points.sweep_requests(request, what)
    jobs.end(workspace, (SWEEP,), name)
    parameters = SweepParameters(name, what.parameter, what.target, what.values, time_limit_s)
    return jobs.start(workspace, f"Sweep {name}", SWEEP, parameters)
