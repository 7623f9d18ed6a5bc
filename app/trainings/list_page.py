"""The list of a workspace's trainings."""

from __future__ import annotations

from app.session.result_kind import TRAINING
from app.shell.result_list import ResultList
from app.trainings import accuracy, new_form
from app.trainings.strategy_tables import describe_request, proof
from torchsplit_core.pictures.numbers import short
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.workspace.store import Workspace


def _figures(request: StrategyRequest, outcome: StrategyOutcome) -> str:
    return f"{short(outcome.candidates[0].seconds_per_step, 's')} a step" if outcome.candidates else ""


def _render_new(workspace: Workspace, *, first: bool) -> None:
    new_form.render(workspace, first=first)
    accuracy.render()


LIST = ResultList(
    TRAINING,
    "Trainings",
    "Train",
    ":material/model_training:",
    "Here you will see how a model is best trained on a fleet that you need not have yet: how devices divide data, "
    "tensors and layers, what is sharded and recomputed, how long a step takes and in what parts, "
    "and how sure that is.",
    "searched",
    describe_request,
    _figures,
    proof,
    _render_new,
)
