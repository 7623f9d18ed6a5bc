"""Downloads of the files by which a cluster starts a strategy, as `train --write-fleet` writes them."""

from __future__ import annotations

import streamlit as st

from app.components.saving import file_name
from app.session.trainings import StoredTraining
from torchsplit_core.deployment import zip_files
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.training.cluster import FleetJob, ResourceRequest, fleet_job, fleet_of
from torchsplit_core.training.cluster.job_files import fleet_files
from torchsplit_core.training.fitted_strategy import communication_of, run_strategy_of
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import SourceSizes
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.values.training import RUN_PRECISIONS

OFFERED = {"slurm": "Slurm (zip)", "jobset": "JobSet (zip)"}


def render(training: StoredTraining, outcome: StrategyOutcome, place: int) -> None:
    """Offer the files of the candidate at that place, from 0, or say why there are none; nothing without a sample."""
    model = training.request.model
    if not isinstance(model, SourceSizes) or not model.source.startswith("sample:"):
        return
    try:
        job = _job(training, outcome, place, model.source)
    except InputFault as fault:
        st.caption(escape_markdown(f"No files for a cluster: {fault.where}: {fault.problem}."))
        return
    stem = f"{file_name(training.name)}.{place + 1}"
    with st.container(horizontal=True):
        for name, label in OFFERED.items():
            st.download_button(
                label, zip_files(fleet_files(job, name)), f"{stem}.{name}.zip", "application/zip",
                on_click="ignore", icon=":material/lan:",
                help="What starts a run by this strategy on a cluster's nodes, as torchsplit train --write-fleet does.",
            )  # fmt: skip
    st.caption(
        escape_markdown(
            f"For a cluster: {job.fleet.description}, with the sample's synthetic data. Untested on hardware."
        )
    )


def _job(training: StoredTraining, outcome: StrategyOutcome, place: int, source: str) -> FleetJob:
    """Raises InputFault for a candidate that cannot run, and for nodes that it does not fill."""
    requested = training.request.training.precision
    precision = requested if requested in RUN_PRECISIONS else None
    strategy = run_strategy_of(outcome, place + 1, precision)
    options = RunOptions(communication=communication_of(training.request, None))
    fleet = fleet_of(training.request, strategy, options, ResourceRequest())
    return fleet_job(
        source, outcome, fleet, training.name, options=options, candidate=place + 1, precision=precision
    )
