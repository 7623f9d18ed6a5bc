"""How wrong the estimates are: published step times beside estimates fitted without their family."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import streamlit as st

from app.charts.training import StepAccuracy, measured_against_estimated
from app.components import saving
from app.shell import widgets
from torchsplit_core.pictures.numbers import percent

LICENCES = (
    "Rows of mosaicml/llm-foundry and NVIDIA/dgxc-benchmarking (Apache-2.0), pytorch/torchtitan and NVIDIA/Megatron-LM "
    "(BSD-3-Clause); the table has each row's source."
)


@cache
def rows() -> tuple[dict[str, str], ...]:
    """The published rows that ship with TorchSplit."""
    text = files("torchsplit_core.strategy").joinpath("data/left_out.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def render() -> None:
    """Draw the figures, the chart and the table."""
    steps = [
        StepAccuracy(
            row["family"],
            f"{row['model']}, {row['gpus']} GPUs",
            float(row["measured_s"]),
            float(row["predicted_s"]),
            float(row["low_s"]),
            float(row["high_s"]),
        )
        for row in rows()
    ]
    st.header("How wrong it was", anchor=False)
    errors = [abs(step.estimated / step.measured - 1) for step in steps]
    coverage = _interval_coverage(steps)
    families = {step.family for step in steps}
    by_family = [_interval_coverage([step for step in steps if step.family == name]) for name in families]
    st.write(
        f"{len(steps)} published training steps, each estimated by constants fitted without its family (a framework "
        f"on a cluster): half of them are off by less than {percent(median(errors))}. The 90 % intervals held "
        f"{percent(coverage)} of the steps, {percent(fmean(by_family))} on average over families and only "
        f"{percent(min(by_family))} of the worst family's. They are meant for frameworks and clusters that were not "
        "measured."
    )
    widgets.chart(
        measured_against_estimated(steps, dark=widgets.is_dark()),
        "Measured against estimated", "training-measured", key="training-judged",
        alt="Estimated over measured seconds of published steps; the table has the figures",
    )  # fmt: skip
    st.caption(f"On the line, estimated equals measured; the dotted lines are 20 % off. {LICENCES}")
    with st.expander("The rows"):
        rows_shown = [dict(row) for row in rows()]
        saving.table(rows_shown, "training-measured", key="training-judged-table", alt="Published steps")


def _interval_coverage(steps: Sequence[StepAccuracy]) -> float:
    """Which share of the measured steps lies in its interval."""
    return sum(step.low <= step.measured <= step.high for step in steps) / len(steps)
