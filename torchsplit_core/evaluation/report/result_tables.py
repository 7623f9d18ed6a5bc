"""The tables of an evaluation as rows of text, for report, document and page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from torchsplit_core.evaluation.grid import FEWEST, REPORTED, RULES, SHARINGS, WEIGHTS, settings_of
from torchsplit_core.evaluation.report.formatting import (
    PLANNERS,
    REGIMES,
    SHARING_WORDS,
    UNKNOWN,
    WEIGHTINGS,
    figure,
    megabytes,
    milliseconds,
    percent,
    proof,
)
from torchsplit_core.pictures.numbers import duration
from torchsplit_core.values.evaluation.outcome import (
    CaseKey,
    ColocationSetting,
    EvaluatedCase,
    EvaluationOutcome,
    EvaluationSettings,
    Planner,
    Regime,
    Weighting,
)


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Cells as text. The first `names` columns are words, and so is the last if `words`; the others are figures."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1
    words: bool = False

    def is_figure(self, column: int) -> bool:
        """Whether a column has figures."""
        return column >= self.names and not (self.words and column == len(self.columns) - 1)


def tables(outcome: EvaluationOutcome) -> tuple[ReportTable, ...]:
    """All tables with rows."""
    known = {case.key: case for case in outcome.cases}
    candidates = (
        _rules(outcome, known),
        _sharing(known),
        _fewest(known),
        _colocation(known),
        _weights(known),
        _responses(outcome, known),
    )
    return tuple(table for table in candidates if table.rows)


CasesByKey = dict[CaseKey, EvaluatedCase]
_EVERYONE: tuple[Planner, ...] = ("planner", *RULES)
_METRICS = (
    "common load",
    "requests/s planned",
    "served at the demands",
    "at work, at the demands",
    "at work, full",
)


def _metrics(case: EvaluatedCase | None) -> tuple[str, ...]:
    if case is None or case.figures is None:
        return (UNKNOWN,) * len(_METRICS)
    figures = case.figures
    return (
        _between(figures.common_load, *(end.common_load for end in (figures.at_low, figures.at_high) if end)),
        figure(figures.total_rps),
        figure(figures.served_rps),
        percent(figures.utilisation),
        percent(figures.utilisation_full),
    )


def _between(value: float, *ends: float) -> str:
    return f"{figure(value)} ({' to '.join(figure(end) for end in ends)})" if any(ends) else figure(value)


def _mixes_and_regimes(known: CasesByKey) -> list[tuple[str, Regime]]:
    """Mixes and regimes, in the order of the cases."""
    return list(dict.fromkeys((key.mix, key.regime) for key in known))


def _rules(outcome: EvaluationOutcome, known: CasesByKey) -> ReportTable:
    rows = []
    for mix, regime in _mixes_and_regimes(known):
        for planner in _EVERYONE:
            case = known.get(CaseKey(mix, regime, "exclusive", "off", "equal", planner))
            if case is not None:
                last = (
                    (percent(case.figures.stranded_share), proof(case))
                    if case.figures
                    else (UNKNOWN, case.why_not)
                )
                basis = case.basis or UNKNOWN
                rows.append((mix, REGIMES[regime], PLANNERS[planner], basis, *_metrics(case), *last))
    return ReportTable(
        "The planner beside the rules",
        "Exclusive slices, no co-location, leximin with equal weights. In brackets: with every estimate at its lower "
        "and upper end. Stranded are compute slices of GPUs in use that no model has.",
        ("mix", "layouts", "by", "basis", *_METRICS, "stranded", "proof"),
        tuple(rows),
        4,
        words=True,
    )


def _sharing(known: CasesByKey) -> ReportTable:
    rows = []
    for (mix, regime), colocation, sharing in product(_mixes_and_regimes(known), REPORTED, SHARINGS):
        case = known.get(CaseKey(mix, regime, sharing, colocation, "equal", "planner"))
        if case is not None:
            worst = _worst_response(case)
            words = proof(case) if case.figures else case.why_not
            rows.append(
                (
                    mix,
                    REGIMES[regime],
                    colocation,
                    SHARING_WORDS[sharing],
                    case.basis or UNKNOWN,
                    *_metrics(case),
                    worst,
                    words,
                )
            )
    return ReportTable(
        "Exclusive and shared slices",
        "The planner, leximin with equal weights. Longest p95: of the models that are served stably, in ms.",
        ("mix", "layouts", "co-location", "slices", "basis", *_METRICS, "longest p95, ms", "proof"),
        tuple(rows),
        5,
        words=True,
    )


def _fewest(known: CasesByKey) -> ReportTable:
    rows = []
    for (mix, regime), sharing in product(_mixes_and_regimes(known), SHARINGS):
        case = known.get(CaseKey(mix, regime, sharing, "off", FEWEST, "planner"))
        if case is not None:
            cells = (
                (str(case.figures.gpus_used), percent(case.figures.stranded_share), proof(case))
                if case.figures
                else (UNKNOWN, UNKNOWN, case.why_not)
            )
            rows.append((mix, REGIMES[regime], SHARING_WORDS[sharing], case.basis or UNKNOWN, *cells))
    return ReportTable(
        "Fewest GPUs that carry every demand",
        "The planner, without co-location; every demand is a minimum of the throughput.",
        ("mix", "layouts", "slices", "basis", "GPUs", "stranded", "proof"),
        tuple(rows),
        4,
        words=True,
    )


def _worst_response(case: EvaluatedCase) -> str:
    return figure(max((model.p95_ms for model in case.models if model.p95_ms is not None), default=None))


COLOCATION_TEXTS: Mapping[ColocationSetting, str] = {
    "routed": "of plans that are equally fair the one with the fewest bytes/s between GPUs",
    "soft": "of plans that are equally fair the one with the fewest bytes torn apart",
    "hard": "on every GPU both or none",
}
"""The meaning of each co-location setting."""


OBJECTIVE_TEXTS: Mapping[Weighting, str] = {
    "equal": "leximin with equal weights",
    "favoured": "leximin with weight 2 for the mix's first model",
    "throughput": "the greatest sum of requests/s, which asks for no fairness",
    "fewest_gpus": "the fewest GPUs that carry every demand, without co-location, which is proven soonest",
}
"""The meaning of each objective."""


def objective_texts(keys: Iterable[CaseKey]) -> tuple[str, ...]:
    """The objectives of these cases in words."""
    used = {key.weights for key in keys}
    return tuple(words for weights, words in OBJECTIVE_TEXTS.items() if weights in used)


def colocation_texts(keys: Iterable[CaseKey]) -> dict[ColocationSetting, str]:
    """The co-locations of these cases in words."""
    used = {key.colocation for key in keys}
    return {tying: words for tying, words in COLOCATION_TEXTS.items() if tying in used}


def _colocation(known: CasesByKey) -> ReportTable:
    rows = []
    for (mix, regime), sharing, colocation in product(_mixes_and_regimes(known), SHARINGS, REPORTED):
        case = known.get(CaseKey(mix, regime, sharing, colocation, "equal", "planner"))
        if case is None:
            continue
        figures = case.figures
        cells = (
            (
                megabytes(figures.bytes_across_cuts_per_s),
                megabytes(figures.cross_gpu_bytes_per_s),
                figure(figures.common_load),
            )
            if figures
            else (UNKNOWN,) * 3
        )
        basis = case.basis or UNKNOWN
        rows.append((mix, REGIMES[regime], SHARING_WORDS[sharing], colocation, basis, *cells))
    texts = " ".join(f"{tying.capitalize()}: {words}." for tying, words in colocation_texts(known).items())
    return ReportTable(
        "Co-location off and on",
        f"{texts} Leaving a GPU: the least that any routing can reach which keeps the servers as busy as planned.",
        (
            "mix",
            "layouts",
            "slices",
            "co-location",
            "across cuts, MB/s",
            "leaving a GPU, MB/s",
            "common load",
        ),
        tuple(rows),
        4,
    )


def _weights(known: CasesByKey) -> ReportTable:
    rows = []
    for (mix, regime), sharing, weights in product(_mixes_and_regimes(known), SHARINGS, WEIGHTS):
        case = known.get(CaseKey(mix, regime, sharing, "off", weights, "planner"))
        if case is None:
            continue
        figures = case.figures
        cells = (
            (
                figure(figures.common_load), figure(figures.jain), str(figures.starved), str(figures.below_demand),
                figure(figures.total_rps),
            )
            if figures
            else (UNKNOWN,) * 5
        )  # fmt: skip
        basis = case.basis or UNKNOWN
        rows.append((mix, REGIMES[regime], SHARING_WORDS[sharing], WEIGHTINGS[weights], basis, *cells))
    return ReportTable(
        "Fairness weights",
        "Without co-location. Jain's index is 1 where every model has the same throughput / demand.",
        (
            "mix", "layouts", "slices", "objective", "basis", "common load", "Jain's index", "models with nothing",
            "models below their demand", "requests/s planned",
        ),
        tuple(rows),
        5,
    )  # fmt: skip


def _responses(outcome: EvaluationOutcome, known: CasesByKey) -> ReportTable:
    rows = []
    for mix, regime in _mixes_and_regimes(known):
        case = known.get(CaseKey(mix, regime, "exclusive", "off", "equal", "planner"))
        for model in case.models if case else ():
            rows.append(
                (
                    mix, REGIMES[regime], model.name, model.basis or UNKNOWN, figure(model.demand_rps),
                    figure(model.throughput_rps), milliseconds(model, 50), milliseconds(model, 95),
                    UNKNOWN if model.p95_ci95_ms is None else f"± {figure(model.p95_ci95_ms, 2)}",
                    figure(model.limit_ms),
                )
            )  # fmt: skip
    return ReportTable(
        "Response times of every model, queues included",
        "The planner, exclusive slices, no co-location, equal weights; Poisson arrivals at the demands. In brackets: "
        "at the upper and the lower end of the estimated throughput; no limit: the lower end cannot serve what comes. "
        "± is the 95 % interval over the replications. The limit is of a batch's service time, without the queue.",
        (
            "mix", "layouts", "model", "basis", "demand, req/s", "planned, req/s", "p50, ms", "p95, ms", "± ms",
            "limit, ms",
        ),
        tuple(rows),
        4,
    )  # fmt: skip


def command_words(settings: EvaluationSettings) -> str:
    """The command that evaluates with these settings, without its folder."""
    quick = " --quick" if settings.quick else ""
    other = settings.time_limit_s != settings_of(settings.quick).time_limit_s
    return f"torchsplit evaluate{quick}{f' --time-limit {settings.time_limit_s:g}' if other else ''}"


def made_words(outcome: EvaluationOutcome) -> str:
    """How, when and by which version it was made; outcomes of an earlier version lack the last two."""
    statistics = outcome.statistics
    text = f"Made by {command_words(outcome.settings)}"
    if "made" in statistics:
        text += f" on {statistics['made']} with TorchSplit {statistics.get('version', UNKNOWN)}"
    if "seconds" in statistics:
        text += f", in {duration(float(statistics['seconds']))}"
    if statistics.get("taken_over"):
        text += f"; {statistics['taken_over']} cases are of a run before it"
    return f"{text}." if "made" in statistics else f"{text}; day and version are not recorded."


def settings_words(outcome: EvaluationOutcome) -> str:
    """What all cases share."""
    settings = outcome.settings
    return (
        f"{len(outcome.cases)} cases; each plan may search for {figure(settings.time_limit_s)} s; each model is "
        f"simulated with {figure(settings.requests_per_model, 6)} requests in each of {settings.replications} "
        "replications."
    )
