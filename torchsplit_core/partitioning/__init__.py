"""Cuts a model into stages: costed requests, exact searches, candidates from a profile.

`solve_partition` solves a partition request; `solve_partitioning_problem` makes the request from a graph and its
profile. Neither needs torch.
"""

from torchsplit_core.partitioning.cut_reasons import CutReason, cut_reasons
from torchsplit_core.partitioning.manual_cut import cut_behind
from torchsplit_core.partitioning.pareto import ParetoOutcome, pareto_candidates, undominated
from torchsplit_core.partitioning.provider import PartitionProvider, solve_partitioning_problem
from torchsplit_core.partitioning.solve import solve_partition
from torchsplit_core.partitioning.verify import verify_candidate, verify_outcome

__all__ = [
    "CutReason",
    "ParetoOutcome",
    "PartitionProvider",
    "cut_behind",
    "cut_reasons",
    "pareto_candidates",
    "solve_partition",
    "solve_partitioning_problem",
    "undominated",
    "verify_candidate",
    "verify_outcome",
]
