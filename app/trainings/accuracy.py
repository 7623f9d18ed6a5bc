"""How wrong the estimate was: published steps beside what is reckoned without their family."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean, median

import streamlit as st

from app.charts.theme import CONFIG
from app.charts.training import StepAccuracy, measured_against_estimated
from app.components import saving
from torchsplit_core.pictures.numbers import percent

LICENCES = (
    "Rows of mosaicml/llm-foundry and NVIDIA/dgxc-benchmarking (Apache-2.0), pytorch/torchtitan and NVIDIA/Megatron-LM "
    "(BSD-3-Clause); the table has each row's source. Written by `python -m benchmarks.training_estimates --write`."
)


@cache
def rows() -> tuple[dict[str, str], ...]:
    """The carried rows."""
    text = files("torchsplit_core.strategy").joinpath("data/left_out.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def render() -> None:
    """The chart with its figures, and the table."""
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
    with saving.exportable("Measured against estimated", "training-measured", key="training-judged"):
        st.plotly_chart(
            measured_against_estimated(steps, dark=st.context.theme.type == "dark"),
            theme=None,
            key="training-judged",
            config=CONFIG,
            alt="Estimated over measured seconds of published steps; the table has the figures",
        )
    st.caption(f"On the line, estimated equals measured; the dotted lines are 20 % off. {LICENCES}")
    with st.expander("The rows"):
        saving.table(
            [dict(row) for row in rows()],
            "training-measured",
            key="training-judged-table",
            alt="Published steps",
        )


def _interval_coverage(steps: Sequence[StepAccuracy]) -> float:
    """Share of the measured steps in their interval."""
    return sum(step.low <= step.measured <= step.high for step in steps) / len(steps)
