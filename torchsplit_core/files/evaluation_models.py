"""The outcome of an evaluation as strict pydantic models, field for field as docs/file-formats.md has it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import (
    Basis,
    Count,
    Facts,
    Finite,
    Name,
    NonNegative,
    Positive,
    Rows,
    Strict,
    Whole,
)
from torchsplit_core.values.evaluation.outcome import (
    ClaimVerdict,
    ColocationSetting,
    ComparisonResult,
    Planner,
    Regime,
    Sharing,
    Weighting,
)
from torchsplit_core.values.status import SolveStatus

Share = Annotated[float, Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class CaseKeyFile(Strict):
    mix: Name
    regime: Regime
    sharing: Sharing
    colocation: ColocationSetting
    weights: Weighting
    planner: Planner


class ModelFiguresFile(Strict):
    name: Name
    basis: Basis | None = None
    demand_rps: Positive
    throughput_rps: NonNegative
    served_rps: NonNegative
    limit_ms: Positive | None = None
    p50_ms: NonNegative | None = None
    p95_ms: NonNegative | None = None
    p95_ci95_ms: NonNegative | None = None
    p50_low_ms: NonNegative | None = None
    p50_high_ms: NonNegative | None = None
    p95_low_ms: NonNegative | None = None
    p95_high_ms: NonNegative | None = None
    overloaded_at_low: bool = False
    bytes_across_cuts_per_s: NonNegative | None = None


class EndsFile(Strict):
    total_rps: NonNegative
    common_load: NonNegative
    utilisation_full: Share | None


class CaseFiguresFile(Strict):
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
    at_low: EndsFile | None = None
    at_high: EndsFile | None = None


class EvaluatedCaseFile(Strict):
    key: CaseKeyFile
    request_sha256: Sha256
    status: SolveStatus | None
    gap: Finite | None
    basis: Basis | None = None
    figures: CaseFiguresFile | None = None
    models: Rows[ModelFiguresFile] = []
    layouts: Rows[str] = []
    why_not: str = ""


class ComparisonFile(Strict):
    label: str
    tested: Finite
    reference: Finite
    result: ComparisonResult
    note: str = ""


class ClaimPartFile(Strict):
    title: str
    metric: str
    rule: str
    verdict: ClaimVerdict
    words: str
    comparisons: Rows[ComparisonFile] = []
    counts: bool = True


class ClaimFile(Strict):
    number: Count
    text: str
    verdict: ClaimVerdict
    words: str
    parts: Rows[ClaimPartFile]


class MixToldFile(Strict):
    name: Name
    title: str
    about: str
    gpu_type: Name
    gpus: Count
    models: Rows[Name]


class EvaluationSettingsFile(Strict):
    quick: bool
    requests_per_model: Count
    replications: Count
    time_limit_s: Positive


class EvaluationOutcomeFile(Strict):
    format: Literal["torchsplit.evaluation"]
    version: Literal[1]
    settings: EvaluationSettingsFile
    mixes: Rows[MixToldFile]
    cases: Rows[EvaluatedCaseFile]
    claims: Rows[ClaimFile] = []
    complete: bool = False
    statistics: Facts = {}
