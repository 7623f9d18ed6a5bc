"""The left column of the tab Cuts: what is asked of the cuts, and the button that finds them."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.session.cuts import CutStudy
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PARTITION, PartitionParameters
from torchsplit_core.pictures.numbers import memory_size
from torchsplit_core.values import InputFault, PartitionDevices, quoted
from torchsplit_core.values.partition import Objective
from torchsplit_core.values.units import GIB
from torchsplit_core.workspace.store import Workspace

OBJECTIVES: Mapping[Objective, str] = {
    "throughput": "Most requests: the slowest stage as fast as can be",
    "latency": "Soonest answer: one batch through all stages",
}
MOST_PARTS = 16
FIRST_LINK = 12.0


def render(workspace: Workspace, model: str, study: CutStudy | None) -> None:
    """The inputs as they were last, and the button Find cuts."""
    devices = study.devices if study else PartitionDevices(4, link_gb_per_s=FIRST_LINK)
    mark = f"{model} {study.devices if study else None}"  # with another study the widgets begin anew
    kinds, known = list(OBJECTIVES), devices.memory_bytes and devices.memory_bytes / GIB
    with st.container(border=True):
        st.header("What to find", anchor=False)
        stages = st.number_input(
            "Stages at most", value=max(2, devices.count), step=1, key=f"stages {mark}",
            help="Every number of stages up to this one is searched.",
        )  # fmt: skip
        objective = st.radio(
            "For", kinds, kinds.index(study.objective) if study else 0, format_func=OBJECTIVES.__getitem__,
            key=f"objective {mark}",
        )  # fmt: skip
        link = st.number_input(
            "Link between stages, GB/s", 0.0, 2000.0, devices.link_gb_per_s, key=f"link {mark}",
            placeholder="transfers take no time",
            help="How fast values travel from one stage to the next. Empty: transfers take no time.",
        )  # fmt: skip
        memory = st.number_input(
            "Memory of a stage at most, GiB", 0.0, 10_000.0, known or None, key=f"memory {mark}",
            placeholder="no limit", help="Weights and activations together.",
        )  # fmt: skip
        factors = st.text_input(
            "Devices of unequal speed", ", ".join(f"{factor:g}" for factor in devices.time_factors or ()),
            key=f"factors {mark}", placeholder="1, 1, 2",
            help="One factor a device: how many times longer it takes than the profiled one. Empty: all are equal.",
        )  # fmt: skip
        if st.button("Find cuts", type="primary", width="stretch"):
            with frame.fault_boundary():
                parameters = parameters_of(model, int(stages), objective, link, memory, factors)
                jobs.start(workspace, f"Cut {model}", PARTITION, parameters)
                st.rerun()


def parameters_of(
    model: str, stages: int, objective: Objective, link: float | None, memory_gib: float | None, factors: str
) -> PartitionParameters:
    """A job's parameters. Raises InputFault for too few or too many stages, and for factors that are no numbers above
    0."""
    if not 2 <= stages <= MOST_PARTS:
        remedy = f"Give a whole number from 2 to {MOST_PARTS}."
        raise InputFault(
            "Stages at most", f"is {stages}, {'below 2' if stages < 2 else f'above {MOST_PARTS}'}", remedy
        )
    values: list[float] = []
    for text in filter(None, (part.strip() for part in factors.replace(";", ",").split(","))):
        try:
            values.append(float(text))
        except ValueError:
            values.append(-1.0)
        if not 0 < values[-1] < float("inf"):
            remedy = "Write numbers with commas between, 1, 1, 2 for example."
            raise InputFault("Devices of unequal speed", f"{quoted(text)} is not a number above 0", remedy)
    if len(values) > MOST_PARTS:
        problem = f"names {len(values)} devices, above the most of {MOST_PARTS}"
        raise InputFault("Devices of unequal speed", problem, "Name fewer.")
    count, memory = len(values) or stages, int((memory_gib or 0.0) * GIB) or None
    return PartitionParameters(model, count, objective, link or None, memory, tuple(values) or None)


def describe_job(parameters: PartitionParameters) -> str:
    """What a job asks of the cuts, as a phrase."""
    devices = PartitionDevices(
        parameters.stages, parameters.memory_bytes, parameters.link_gb_per_s, parameters.time_factors
    )
    return f"{OBJECTIVES[parameters.objective].partition(':')[0].lower()}, {describe_devices(devices)}"


def describe_devices(devices: PartitionDevices) -> str:
    """Number of stages, link and memory, as a phrase."""
    link = devices.link_gb_per_s
    parts = [f"1 to {devices.count} stages"]
    if devices.time_factors:
        parts = [f"devices that take {', '.join(f'{f:g}' for f in devices.time_factors)} times as long"]
    parts.append(f"a link of {link:g} GB/s" if link else "transfers that take no time")
    if devices.memory_bytes:
        parts.append(f"at most {memory_size(devices.memory_bytes)} in a stage")
    return ", ".join(parts)
