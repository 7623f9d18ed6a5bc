"""A plan as the scheduler of Kubernetes would place it: a claim for each pod beside the claims of the files."""

from __future__ import annotations

import streamlit as st

from app.format.html import table_html
from app.plans import slice_map
from torchsplit_core.deployment import ClusterForecast, forecast_cluster, group_by_host, placed_plan
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.pictures.numbers import counted, escape_markdown
from torchsplit_core.values import PlanOutcome, PlanRequest

_HEAD = (
    "<th title=\"Who makes the MIG slices: an administrator before any pod comes, or NVIDIA's DRA driver when a claim "
    'is allocated">slices are made</th>'
    '<th title="Pods without a slice where each asks for its slice by itself, over random orders of arrival">'
    "without a slice, a claim for each pod</th>"
    '<th title="Pods without a slice where each GPU is one claim that its pods share, as in dra/claims.yaml">'
    "without a slice, the claims of these files</th>"
)
_WAYS = {False: "With slices cut beforehand", True: "With dynamic MIG"}


def render(name: str, plan: PlanOutcome, request: PlanRequest | None) -> None:
    """Pods that would find no slice; below, opened, the map of the worst order. Nothing for a plan of cores.

    Raises InputFault as `group_by_host` does.
    """
    forecasts = forecast_cluster(group_by_host(plan))
    if not forecasts:
        return
    with st.container(border=True):
        st.markdown("**As your cluster would place it**")
        st.write(sentence(forecasts))
        st.html(table_html(_HEAD, [_row(forecast) for forecast in forecasts]))
        st.caption(
            "A model of the scheduler's allocator, not tried on a cluster. It takes the first slice that fits and "
            "reconsiders only within one claim. Nothing else runs on these GPUs."
        )
        worst = max(forecasts, key=lambda forecast: forecast.by_pod.most)
        if worst.by_pod.most:
            opened = st.expander("The worst of these orders, drawn", key="cluster-worst", on_change="rerun")
            if opened.open:
                with opened:
                    placed, stranded = placed_plan(plan, worst)
                    names = ", ".join(
                        f"{' and '.join(tenant.model for tenant in item.tenants)} ({item.profile or 'whole GPU'})"
                        for item in stranded
                    )
                    st.write(f"Without a slice: {escape_markdown(names)}.")
                    colours = model_colours([model.name for model in (request or plan).models])
                    slice_map.render(placed, request, colours, key="cluster-map", file=f"{name}.cluster")


def sentence(forecasts: tuple[ClusterForecast, ...]) -> str:
    """What the two shapes of claims strand, in words."""
    by_pod = max(forecasts, key=lambda forecast: forecast.by_pod.most)
    by_gpu = max(forecasts, key=lambda forecast: forecast.by_gpu.most)
    pods = counted(by_pod.by_pod.pods, "pod")
    if by_gpu.by_gpu.most:
        return (
            f"{_WAYS[by_gpu.dynamic]} up to {by_gpu.by_gpu.most} of {pods} find no slice even with the claims of these "
            "files: a GPU has another's slices and more. Let the pods of GPUs with more slices come first."
        )
    if by_pod.by_pod.most:
        return (
            f"{_WAYS[by_pod.dynamic]} up to {by_pod.by_pod.most} of {pods} find no slice where each has a claim of its "
            "own; with the claims of these files (dra/) all do."
        )
    return (
        f"{'The pod finds its slice' if by_pod.by_pod.pods == 1 else f'All {pods} find a slice'} either way; only the "
        "claims of these files keep together what the plan puts on one GPU."
    )


def _row(forecast: ClusterForecast) -> str:
    return f"<tr><td>{forecast.way}</td><td>{forecast.by_pod}</td><td>{forecast.by_gpu}</td></tr>"
