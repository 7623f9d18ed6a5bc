"""The list of a workspace's placements."""

from __future__ import annotations

from app.placements import new_form
from app.placements.outcome_tables import gpus_used, headline, proof
from app.session.result_kind import PLACEMENT
from app.shell.result_list import ResultList
from torchsplit_core.values import PlacementOutcome, PlacementRequest


def _figures(request: PlacementRequest, outcome: PlacementOutcome) -> str:
    if not outcome.segments:
        return ""
    used = gpus_used(outcome)
    return headline(outcome) + ("" if used == len(request.gpus) else f" on {used} of them")


LIST = ResultList(
    PLACEMENT,
    "New placement",
    "Place",
    ":material/account_tree:",
    "Here you will see which layers of an LLM go on which GPUs of a fleet so that throughput is highest, "
    "drawn over its nodes, with the proof.",
    "placed",
    lambda request: f"{request.model.layers} layers on {len(request.gpus)} GPUs",
    _figures,
    proof,
    new_form.render,
)
