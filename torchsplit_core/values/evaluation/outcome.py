"""The evaluation's outcome: every case with its four metrics, and every claim with its verdict.

Figures that were not computed are None. `low` and `high` in a name: with every estimated throughput at the lower or
upper end of its 90 % interval; measured ones are not varied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Count,
    Facts,
    FileField,
    Finite,
    Name,
    NonNegative,
    Positive,
    Range,
    Sha256,
    Whole,
)
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus

Regime = Literal["any", "stock"]
Sharing = Literal["exclusive", "fractional"]
ColocationSetting = Literal["off", "routed", "soft", "hard"]
Weighting = Literal["equal", "favoured", "throughput", "fewest_gpus"]
"""What is asked for: leximin with weights, the greatest sum, or the fewest GPUs that carry every demand."""
Planner = Literal["planner", "whole_gpu", "uniform", "first_fit", "greedy"]
ClaimVerdict = Literal["supported", "not supported", "cannot be said"]
ComparisonResult = Literal["better", "equal", "worse", "open"]
Share = Annotated[float, Range(ge=0, le=1 + 1e-9)]


@dataclass(frozen=True, slots=True)
class CaseKey:
    """Which case: the mix, what the fleet and the plan may be, and who planned it."""

    mix: Name
    regime: Regime
    sharing: Sharing
    colocation: ColocationSetting
    weights: Weighting
    planner: Planner

    @property
    def name(self) -> str:
        """The whole key as one word."""
        return "-".join((self.mix, self.regime, self.sharing, self.colocation, self.weights, self.planner))


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model in a case. `throughput_rps` is planned, the rest simulated with Poisson arrivals at `demand_rps`.

    Response times are None where more arrives than can be served. `p95_ci95_ms` is the half-width of the 95 %
    interval over the replications. `p50_low_ms` and `p95_low_ms` are at the upper end of the estimated throughput,
    `p50_high_ms` and `p95_high_ms` at its lower end; None where nothing is estimated, or where that end cannot serve
    what arrives (`overloaded_at_low`).
    """

    name: Name
    basis: Annotated[Basis | None, FileField(default=(None,))]
    demand_rps: Positive
    throughput_rps: NonNegative
    served_rps: NonNegative
    limit_ms: Positive | None = None
    p50_ms: NonNegative | None = None
    p95_ms: NonNegative | None = None
    p95_ci95_ms: NonNegative | None = None
    p50_low_ms: Added[NonNegative | None] = None
    p50_high_ms: Added[NonNegative | None] = None
    p95_low_ms: Added[NonNegative | None] = None
    p95_high_ms: Added[NonNegative | None] = None
    overloaded_at_low: Added[bool] = False
    bytes_across_cuts_per_s: Added[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class IntervalEnds:
    """What a case reaches with every estimate at one end of its interval."""

    total_rps: NonNegative
    common_load: NonNegative
    utilisation_full: Share | None


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """A case's four metrics, over all models.

    total_rps: sum of the planned throughputs. served_rps: sum of what is served at the demands, simulated.
    common_load: the least throughput / demand, by which all demands can grow together. jain: Jain's index of
    throughput / demand, 1 where all fare alike. utilisation: share of the fleet's compute slices at work, at the
    demands; utilisation_full: at 0.9 of `common_load` times them, None where that is 0.
    bytes_across_cuts_per_s: over all cuts, simulated. cross_gpu_bytes_per_s: of the tensors that the mix's pairs
    hand on, those that must leave their GPU.
    stranded_share: of the compute slices of GPUs in use, those that no model has. memory_share: the fullest slice.
    """

    total_rps: NonNegative
    served_rps: NonNegative
    common_load: NonNegative
    jain: Share
    starved: Whole
    below_demand: Whole
    utilisation: Share
    utilisation_full: Share | None
    bytes_across_cuts_per_s: NonNegative | None
    cross_gpu_bytes_per_s: NonNegative | None
    gpus_used: Whole
    stranded_share: Share
    memory_share: NonNegative | None
    deployable: bool
    at_low: IntervalEnds | None = None
    at_high: IntervalEnds | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedCase:
    """One case. `figures` None: no plan, for the reason `why_not` gives. `layouts` are the GPUs' slices with tenants.

    `gap` is (bound − value) / bound of the plan's first level, of the fewest GPUs (value − bound) / value; 0 where that
    is proven. Rules prove nothing.
    """

    key: CaseKey
    request_sha256: Sha256
    status: SolveStatus | None
    gap: Finite | None
    basis: Basis | None = None
    figures: CaseFigures | None = None
    models: tuple[ModelFigures, ...] = ()
    layouts: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of two cases that differ in one thing: `tested` is what the claim speaks for."""

    label: str
    tested: Finite
    reference: Finite
    result: ComparisonResult
    note: str = ""


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One part of a claim and the comparisons that decide it. `counts` False: reported, but not decisive."""

    title: str
    metric: str
    rule: str
    verdict: ClaimVerdict
    words: str
    comparisons: tuple[Comparison, ...] = ()
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim about plans; its verdict is the weakest of the parts that count.

    The parts of claim 1 are alternative tests of it: its verdict is the weakest of those that decide anything.
    """

    number: Count
    text: str
    verdict: ClaimVerdict
    words: str
    parts: tuple[ClaimPart, ...]


@dataclass(frozen=True, slots=True)
class MixDescription:
    """What a reader needs to know of a mix."""

    name: Name
    title: str
    about: str
    gpu_type: Name
    gpus: Count
    models: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """What all cases share; cases of an earlier run are reused only if it had the same settings."""

    quick: bool
    requests_per_model: Count
    replications: Count
    time_limit_s: Positive


@dataclass(frozen=True, slots=True)
class EvaluationOutcome:
    """The whole evaluation; `complete` False while cases are missing."""

    settings: EvaluationSettings
    mixes: tuple[MixDescription, ...]
    cases: tuple[EvaluatedCase, ...]
    claims: tuple[Claim, ...] = ()
    complete: bool = False
    statistics: Facts = field(default_factory=dict)
