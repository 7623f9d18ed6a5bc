"""Trace, profile, partition, plan, place, simulate, serve, measure, deploy and find training strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchsplit_core.on_demand import on_demand

if TYPE_CHECKING:
    from torchsplit_core.workflow.days import day_curve, held_out_curve, plan_day, replay_day
    from torchsplit_core.workflow.deployments import deploy
    from torchsplit_core.workflow.estimates import estimated_rows, with_estimated_points, with_estimates
    from torchsplit_core.workflow.lengths import profile_lengths
    from torchsplit_core.workflow.profiling import profile
    from torchsplit_core.workflow.serving import front_words, measure, profile_llm, serve, with_front_costs
    from torchsplit_core.workflow.simulations import (
        server_id,
        simulate,
        simulated_requests,
        simulation_request,
        under_load,
        without_instance,
    )
    from torchsplit_core.workflow.steps import (
        compare_placements,
        drawing,
        engine_questions,
        literal_size,
        own_partition,
        partition,
        place,
        placement_alternatives,
        placement_frontier,
        placement_request,
        plan,
        trace,
        with_engine_points,
    )
    from torchsplit_core.workflow.strategies import strategy, strategy_script

__all__ = [
    "compare_placements",
    "day_curve",
    "deploy",
    "drawing",
    "engine_questions",
    "estimated_rows",
    "front_words",
    "held_out_curve",
    "literal_size",
    "measure",
    "own_partition",
    "partition",
    "place",
    "placement_alternatives",
    "placement_frontier",
    "placement_request",
    "plan",
    "plan_day",
    "profile",
    "profile_lengths",
    "profile_llm",
    "replay_day",
    "serve",
    "server_id",
    "simulate",
    "simulated_requests",
    "simulation_request",
    "strategy",
    "strategy_script",
    "trace",
    "under_load",
    "with_engine_points",
    "with_estimated_points",
    "with_estimates",
    "with_front_costs",
    "without_instance",
]

__getattr__ = on_demand(
    __name__,
    {
        "days": "day_curve held_out_curve plan_day replay_day",
        "deployments": "deploy",
        "estimates": "estimated_rows with_estimated_points with_estimates",
        "lengths": "profile_lengths",
        "profiling": "profile",
        "serving": "front_words measure profile_llm serve with_front_costs",
        "simulations": "server_id simulate simulated_requests simulation_request under_load without_instance",
        "steps": (
            "compare_placements drawing engine_questions literal_size own_partition partition place "
            "placement_alternatives placement_frontier placement_request plan trace with_engine_points"
        ),
        "strategies": "strategy strategy_script",
    },
)
