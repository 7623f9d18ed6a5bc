"""A new run: a sample or a file of yours, by a strategy; or a run in another folder."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import streamlit as st

from app.runs.status_tables import describe_candidate
from app.runs.trust_dialog import upload_box
from app.session import runs, trust
from app.session.workspace import names, read
from app.shell import frame, navigation
from sample_models.registry import SAMPLES
from torchsplit_core.jobs.job_kinds import UploadedFile
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.training.fitted_strategy import fit_to_world_sizes, run_strategy_of
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy, parse_shares
from torchsplit_core.values.strategy.updates import SCHEDULES, UpdateOptions
from torchsplit_core.values.training import RUN_PRECISIONS, ParallelConfig, TrainingJob
from torchsplit_core.workspace.store import Workspace

MANUAL_STRATEGY = "Choices made here"
EXCHANGES = {
    "Chosen by measurement, nothing lost": CommunicationRequest(),
    "Chosen, may round to bf16": CommunicationRequest(("bf16",)),
    "Chosen, may round to bf16 or use PowerSGD": CommunicationRequest(("bf16", "powersgd")),
    "DDP's defaults": CommunicationRequest(hook="ddp"),
}
NO_SCHEDULE = "None"
LABELS = {
    "--warmup-steps": "Warm-up steps", "--clip-norm": "Clip norm", "--validate-every": "Validate every",
    "--best": "Keep the best by",
}  # fmt: skip
"""Fields of the form by the options of the command line."""
SHARDS = ("none", "zero1", "zero2", "fsdp")
OPTIMIZERS = ("adamw", "sgd")
"""Of the clients of the samples."""
STEPS = 40
"""Where the source does not say how many it needs."""


def render(workspace: Workspace, *, first: bool) -> None:
    """Draw the form, and the field for a run in another folder."""
    left, right = st.columns(2, gap="medium")
    with left, frame.fault_boundary():
        source, file, ready = _model(workspace)
    with right, frame.fault_boundary():
        settings = _render_settings(workspace, source)
        pressed = st.button(
            "Start the run", type="primary" if first else "secondary", key="run-start",
            disabled=not ready or settings is None,
        )  # fmt: skip
        if pressed and settings is not None:
            navigation.go("Run", runs.start(workspace, source, *settings, file))
    _open(workspace)


def _model(workspace: Workspace) -> tuple[str, UploadedFile | None, bool]:
    """Ask for the source; return it with its uploaded file, and whether the server may execute it."""
    kind = st.radio("Model", (runs.SAMPLE, runs.FILE), horizontal=True, key="run-kind")
    if kind == runs.SAMPLE:
        by_name = {sample.name: sample for sample in SAMPLES}
        name = st.selectbox(
            "Sample", list(by_name), format_func=lambda name: by_name[name].title, key="run-sample"
        )
        st.caption(f"Trained on {by_name[name].data}.")
        return f"sample:{name}", None, True
    if trust.is_refused():
        st.warning(trust.REFUSED)
    _store_dropped(workspace)
    files = [name for name in names(workspace, "upload") if name.endswith(".py")]
    if not files:
        return "", None, False
    name = st.selectbox("File", files, key="run-file")
    entry = st.text_input("Name of the TrainClient in the file", "client", key="run-client")
    if not re.fullmatch(r"[A-Za-z_]\w*", entry):
        raise InputFault(
            "TrainClient",
            f"{quoted(entry)} is not the name of a class or object",
            "Enter the name that it has in the file.",
        )
    source = f"{name}:{entry}"
    file, ticked = upload_box(workspace, source)
    st.caption(trust.UNCONFINED)
    return source, file, ticked


def _store_dropped(workspace: Workspace) -> None:
    """Store a dropped file once."""
    dropped = st.file_uploader("A .py file with a TrainClient", type=["py"], key="run-upload")
    if dropped is None:
        return
    data = dropped.getvalue()
    stored = workspace.find("upload", dropped.name)
    if stored is None or stored.sha256 != hashlib.sha256(data).hexdigest():
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            raise InputFault(
                dropped.name, "is binary data, not the text of a Python file", "Choose another file."
            ) from None
        workspace.put_bytes("upload", dropped.name, data)


def _render_settings(workspace: Workspace, source: str) -> tuple[RunStrategy, RunOptions] | None:
    """Ask for the strategy, the steps and the number of processes; None, with the reason beside its field, where that
    is not run."""
    usual_steps = next((sample.steps for sample in SAMPLES if source == f"sample:{sample.name}"), STEPS)
    form: dict[str, Any] = {}
    stored = names(workspace, "strategy")
    form["strategy"] = st.selectbox("Strategy", (MANUAL_STRATEGY, *stored), key="run-strategy")
    below_strategy = st.container()
    left, right = st.columns(2)
    if form["strategy"] == MANUAL_STRATEGY:
        form["shard"] = left.selectbox(
            "Sharding", SHARDS, key="run-shard", help="What of the model's state is cut over the processes."
        )
        form["optimizer"] = right.selectbox("Optimizer", OPTIMIZERS, key="run-optimizer")
        form["batch"] = int(left.number_input("Global batch size", 1, 2**20, 8, key="run-batch"))
        form["micro"] = int(right.number_input("Micro-batch size, at most", 1, 2**20, 4, key="run-micro"))
    else:
        outcome: StrategyOutcome = read(workspace, "strategy", form["strategy"])
        form["candidate"] = left.selectbox(
            "Candidate", range(1, len(outcome.candidates) + 1), key=f"run-candidate {form['strategy']}",
            format_func=lambda place: f"{place}: {describe_candidate(outcome.candidates[place - 1])}",
        )  # fmt: skip
    form["precision"] = right.selectbox("Precision", RUN_PRECISIONS, key="run-precision")
    form["processes"] = int(
        left.number_input(
            "Processes", 1, 4096, 2, key="run-processes", help="The global batch size stays as it is."
        )
    )
    below_processes = left.container()
    form["every"] = int(right.number_input("A checkpoint every", 1, 10**9, 10, key="run-every"))
    form["steps"] = int(left.number_input("Steps", 1, 10**9, usual_steps, key=f"run-new-steps {usual_steps}"))
    left, right = st.columns(2, vertical_alignment="bottom")
    form["shares"] = left.text_input(
        "Shares", key="run-shares",
        placeholder="Equal" if form["strategy"] == MANUAL_STRATEGY else "The strategy's, or equal",
        help="Parts of the global batch by data rank, for unequal devices: 3,1 gives the first of two three quarters.",
    )  # fmt: skip
    form["balance"] = right.toggle(
        "Balance", key="run-balance",
        help="The work follows the measured speed of the ranks: their samples, or in a pipeline the layers of its "
        "stages.",
    )  # fmt: skip
    below_shares = st.container()
    form["communication"] = EXCHANGES[
        st.selectbox(
            "Gradient reduction", [*EXCHANGES], key="run-communication",
            help="Under DDP a run times its own all-reduces and takes the fastest. Compression changes results a "
            "little; PowerSGD more.",
        )
    ]  # fmt: skip
    left, middle, right = st.columns(3, vertical_alignment="bottom")
    form["schedule"] = left.selectbox(
        "Schedule", (NO_SCHEDULE, *SCHEDULES), key="run-schedule",
        help="How the learning rate goes on from the optimizer's: to 0 at the last step evenly or along half a cosine.",
    )  # fmt: skip
    form["warmup"] = int(
        middle.number_input(
            "Warm-up steps", 0, 10**9, 0, key="run-warmup", disabled=form["schedule"] == NO_SCHEDULE,
            help="Steps for which the learning rate rises first.",
        )
    )  # fmt: skip
    form["clip"] = right.number_input(
        "Clip norm", 0.0, None, None, key="run-clip", placeholder="No limit",
        help="The most that the 2-norm of a step's gradients may be.",
    )  # fmt: skip
    left, right = st.columns(2, vertical_alignment="bottom")
    form["validate_every"] = left.number_input(
        "Validate every", 1, 10**9, None, key="run-validate", placeholder="At the end alone",
        help="Steps from one measurement on held-out samples to the next, if the model's client has such samples.",
    )  # fmt: skip
    form["best"] = right.text_input(
        "Keep the best by", key="run-best", placeholder="accuracy, loss:min", disabled=not form["validate_every"],
        help="The checkpoint with the best value of this metric stays: NAME, NAME:min or NAME:max.",
    )  # fmt: skip
    below_update = st.container()
    beside = {
        "--processes": below_processes, "--shares": below_shares, "--balance": below_shares,
        "--warmup-steps": below_update, "--clip-norm": below_update, "--validate-every": below_update,
        "--best": below_update,
    }  # fmt: skip
    try:
        return parse_settings(workspace, form)
    except InputFault as fault:
        beside.get(fault.where, below_strategy).error(escape_markdown(_in_words_of_the_form(fault)))
    return None


def _in_words_of_the_form(fault: InputFault) -> str:
    """A refusal of the command line, its options by the names of their fields."""
    text = str(fault)
    for option, label in LABELS.items():
        text = text.replace(option, label)
    return re.sub(r"--(processes|shares|balance|candidate)\b", lambda match: match[1].capitalize(), text)


def parse_settings(workspace: Workspace, form: dict[str, Any]) -> tuple[RunStrategy, RunOptions]:
    """The strategy and the options that the form asks for. Raises InputFault for a strategy that cannot run."""
    if form["strategy"] == MANUAL_STRATEGY:
        chosen = RunStrategy(
            ParallelConfig(data=form["processes"], micro_batch=form["micro"], shard=form["shard"]),
            TrainingJob(form["batch"], form["precision"], form["optimizer"]),
        )
    else:
        outcome = read(workspace, "strategy", form["strategy"])
        chosen = run_strategy_of(outcome, form["candidate"] or 1, form["precision"])
    schedule = form.get("schedule", NO_SCHEDULE)
    named = None if schedule == NO_SCHEDULE else schedule
    if named and form["warmup"] > form["steps"]:
        raise InputFault(
            "--warmup-steps",
            f"is {form['warmup']}, above the {form['steps']} steps of the run",
            f"Give at most {form['steps']}.",
        )
    every = form.get("validate_every")
    options = RunOptions(
        steps=form["steps"], checkpoint_every=form["every"], shares=parse_shares(form.get("shares")),
        balance=form.get("balance", False),
        communication=form.get("communication", CommunicationRequest()),
        update=UpdateOptions(form.get("clip"), named, form["warmup"] if named else 0),
        validation=ValidationOptions(every, (form.get("best") or "").strip() or None) if every else ValidationOptions(),
    )  # fmt: skip
    return fit_to_world_sizes(chosen, options, (form["processes"],)), options


def _open(workspace: Workspace) -> None:
    """Ask for the folder of a run that the command line or the user's own loop started."""
    with st.expander("Or open a run folder"):
        text = st.text_input("Folder of a run on this machine", key="run-folder", placeholder="/home/me/run")
        st.caption("It is read, and stays where it is. Of torchsplit train … -o, or of a loop with prepare.")
        if st.button("Open it", key="run-open", disabled=trust.is_refused()):
            with frame.fault_boundary():
                navigation.go("Run", runs.open_folder(workspace, text))
