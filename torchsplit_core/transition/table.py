"""A transition as a table for the person who signs it: who stops, when, for how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.values import ForeignTenant, ModelDuring, Tenant, Transition, TransitionStep, slice_name

ACTIONS = {
    "stop": "drain and stop",
    "destroy": "destroy instance",
    "create": "create instance",
    "start": "start",
    "enable_mig": "switch MIG mode on",
    "disable_mig": "switch MIG mode off",
}


def transition_table(outcome: Transition) -> tuple[str, ...]:
    """Lines of text: what stays, the steps with their estimated times, what each model gets meanwhile."""
    return tuple(_lines(outcome))


def _lines(outcome: Transition) -> Iterator[str]:
    if outcome.status == "infeasible":
        yield f"infeasible: {outcome.message}"
        return
    yield (
        f"untouched tenants: {outcome.untouched_tenants}; kept instances: {outcome.kept_instances}; "
        f"touched GPUs: {outcome.touched_gpus}{_proof(outcome)}"
    )
    if outcome.spare_gpu is not None:
        yield f"{outcome.spare_gpu} is empty before and after, and bridges meanwhile"
    if not outcome.steps:
        yield "nothing to do: the plan runs already"
        return
    for mapped in outcome.mapping:
        if mapped.plan_gpu != mapped.host_gpu:
            yield f"{mapped.plan_gpu} of the plan is {mapped.host_gpu} of the host"
    yield ""
    yield from aligned(
        [("step", "after s", "for s", "GPU", "what", "where", "who"), *step_rows(outcome.steps)], right=3
    )
    yield "after each step the host is in a legal state, and undoing the steps so far, last first, leads back"
    yield ""
    rows = [("model", "before /s", "lowest /s", "after /s", "demand /s", "model-seconds below demand")]
    yield from aligned([*rows, *map(_model_row, outcome.during)])
    for warning in outcome.warnings:
        yield f"warning: {warning}"


def _proof(outcome: Transition) -> str:
    if outcome.status == "optimal":
        return " (proven: no transition leaves more)"
    bound = outcome.bound
    return "" if bound is None else f" (with fewest GPUs touched: {bound.touched_gpus})"


def step_rows(steps: tuple[TransitionStep, ...]) -> Iterator[tuple[str, ...]]:
    """Of each step: number, seconds until it begins, seconds that it takes, GPU, action, instance, tenants."""
    now = 0.0
    for number, step in enumerate(steps, 1):
        where = "" if step.start is None else slice_name(step.profile, step.start)
        seconds = step.seconds or 0.0
        yield (
            str(number), f"{now:.1f}", f"{seconds:.1f}", step.gpu, ACTIONS[step.action], where,
            ", ".join(map(_tenant, step.tenants)),
        )  # fmt: skip
        now += seconds


def _tenant(tenant: Tenant | ForeignTenant) -> str:
    if isinstance(tenant, ForeignTenant):
        return f"{tenant.foreign} (not of a plan)"
    stage = "" if tenant.stage == "whole" else f"/{tenant.stage}"
    share = "" if tenant.share == 1 else f" at {tenant.share:.3g} of it"
    return f"{tenant.model}{stage}{share}"


def _model_row(during: ModelDuring) -> tuple[str, ...]:
    figures = (during.before_rps, during.lowest_throughput_rps, during.after_rps, during.demand_rps)
    lost = during.model_seconds_below_demand
    texts = ["n/a" if figure is None else f"{figure:.4g}" for figure in figures]
    return (during.model, *texts, "n/a" if lost is None else f"{lost:.1f} (estimated)")


def aligned(rows: Sequence[tuple[str, ...]], right: int = 0) -> Iterator[str]:
    """Lines of columns of equal width, the first `right` of them to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.rjust(width) if column < right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
