"""From profiles (and partition candidates) to a plan request.

Rows on the fleet's slices (MIG profiles, whole GPUs, cores of hosts) become points with their intervals. A candidate
becomes a variant; `stage_rows` gives the points of its stages, estimated unless the profile has rows of the stage
itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import is_unpartitioned
from torchsplit_core.planning.request.frontend_costs import with_frontend_costs
from torchsplit_core.planning.request.stage_rows import stage_rows
from torchsplit_core.values import (
    WHOLE_GPU,
    Colocation,
    FleetEntry,
    InputFault,
    Objective,
    PartitionCandidate,
    PartitionOutcome,
    PlanModel,
    PlanRequest,
    Point,
    Profile,
    ProfileRow,
    SolverOptions,
    Stage,
    Variant,
    at_first_length,
    at_sequence_length,
    point_type,
    sequence_lengths,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.limits import MOST_TIER, check_number, check_whole
from torchsplit_core.values.names import free_name
from torchsplit_core.values.profile import BASES

_SliceKeys = set[tuple[str, str | None]]
"""gpu_type and profile of rows; None: a whole GPU."""
_Cut = tuple[PartitionCandidate, int | None]
"""A candidate and the largest batch of its outcome."""


def model_name(profile: Profile) -> str:
    """The model's name: the profile's, else a short form of its source.

    `sample:bert@large` → `bert`, `import:bert` → `bert`, `recommender.py:Client` → `recommender`, and a run's
    `runs/digits@step-440` → `digits`.
    """
    if profile.name:
        return profile.name
    source = profile.source
    if source.startswith("import:"):
        return source.removeprefix("import:") or "model"
    if source.startswith(("sample:", "library:")):
        return source.partition(":")[2].partition("@")[0]
    if match := re.fullmatch(r"(?:.*[/:])?([^/:]+)@step-\d+", source):
        return match[1]
    path, _, _ = source.rpartition(":")
    return PurePath(path if path.endswith(".py") else source).stem or "model"


def build_request(
    profiles: Sequence[Profile],
    gpus: Sequence[FleetEntry],
    *,
    candidates: Sequence[PartitionOutcome] = (),
    demands: Mapping[str, float] | None = None,
    min_throughputs: Mapping[str, float] | None = None,
    max_latencies: Mapping[str, float] | None = None,
    max_responses: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    tiers: Mapping[str, float] | None = None,
    colocations: Sequence[Colocation] = (),
    objective: Objective | None = None,
    sharing: str = "exclusive",
    link_gb_per_s: float | None = None,
    network_gb_per_s: float | None = None,
    time_limit_s: float = 60.0,
    cap_at_demand: Collection[str] = (),
    forbidden: Collection[tuple[str, str]] = (),
    max_tenants_per_slice: int | None = None,
    plan_at: Literal["nominal", "low"] = "nominal",
    sequence_length: int | None = None,
    names: Sequence[str] = (),
    llms: Sequence[PlanModel] = (),
) -> PlanRequest:
    """One model a profile, with every point that the fleet's slices allow, then the `llms`.

    Of a profile with several sequence lengths the rows of one are taken: `sequence_length`, else the first row's.
    Mappings are by model name: `names`, else `model_names`. `link_gb_per_s` defaults to that of the candidates. With
    cores in the fleet, the request has the front's costs if a profile has them. `cap_at_demand` names models,
    `forbidden` (model, variant).

    Raises InputFault for a name that is no model or variant, a candidate that belongs to no profile, a row whose
    throughput is outside its interval, a sequence length that a profile does not have, or no profile at all.
    """
    if not profiles and not llms:
        raise InputFault(
            "profiles", "are missing, so the request has no model", "Pass a profile file, or an LLM (--llm)."
        )
    profiles = _select_length(profiles, sequence_length)
    if sharing not in ("exclusive", "fractional"):
        raise InputFault(
            "sharing",
            f"unknown kind {quoted(sharing)}",
            suggestion(sharing, ("exclusive", "fractional"), "kinds"),
        )
    for option, speed in (("--link", link_gb_per_s), ("--network", network_gb_per_s)):
        if speed is not None:
            check_number(option, speed, positive=True)
    for entry in gpus:
        gpu_type(entry.type)
    names = (*(names or model_names(profiles)), *(model.name for model in llms))
    cuts = _match_candidates(candidates, profiles)
    tables = {
        "demand": demands,
        "min-throughput": min_throughputs,
        "max-latency": max_latencies,
        "max-response": max_responses,
        "weight": weights,
        "tier": tiers,
    }
    for option, table in tables.items():
        for name, value in (table or {}).items():
            if name not in names:
                raise InputFault(
                    f"--{option}", f"unknown model {quoted(name)}", suggestion(name, names, "models")
                )
            if option == "tier":
                check_number(f"--tier {name}", value)
                whole = int(value) if float(value).is_integer() else value
                check_whole(f"--tier {name}", whole, most=MOST_TIER)
            elif not 0 < value < float("inf"):
                raise InputFault(
                    f"--{option} {name}",
                    f"is {value:g}, not a finite number above 0",
                    "Give a number above 0.",
                )
    for name in cap_at_demand:
        if name not in names:
            raise InputFault("--cap", f"unknown model {quoted(name)}", suggestion(name, names, "models"))
    slices = _slices_of(gpus)
    models = tuple(
        PlanModel(
            name=name,
            weight=(weights or {}).get(name, 1.0),
            tier=int((tiers or {}).get(name, 0)),
            demand_rps=(demands or {}).get(name, 1.0),
            min_throughput_rps=(min_throughputs or {}).get(name),
            max_latency_ms=(max_latencies or {}).get(name),
            max_response_ms=(max_responses or {}).get(name),
            cap_at_demand=name in cap_at_demand,
            variants=_variants(profile, cuts[index], slices),
            source=profile.source or None,
        )
        for index, (name, profile) in enumerate(zip(names, profiles, strict=False))
    )
    models += tuple(
        replace(
            llm,
            weight=(weights or {}).get(llm.name, 1.0),
            tier=int((tiers or {}).get(llm.name, 0)),
            demand_rps=(demands or {}).get(llm.name, llm.demand_rps),
            min_throughput_rps=(min_throughputs or {}).get(llm.name),
            max_latency_ms=(max_latencies or {}).get(llm.name),
            max_response_ms=(max_responses or {}).get(llm.name),
            cap_at_demand=llm.name in cap_at_demand,
        )
        for llm in llms
    )
    request = PlanRequest(
        gpus=tuple(gpus),
        models=_forbid_variants(models, forbidden),
        colocations=tuple(colocations),
        objective=objective or Objective(),
        sharing="fractional" if sharing == "fractional" else "exclusive",
        link_gb_per_s=link_gb_per_s or _link_of(candidates),
        network_gb_per_s=network_gb_per_s,
        max_tenants_per_slice=max_tenants_per_slice,
        solver=SolverOptions(time_limit_s=time_limit_s, plan_at=plan_at),
    )
    return with_frontend_costs(request, dict(zip(names, profiles, strict=False)))


def _select_length(profiles: Sequence[Profile], length: int | None) -> tuple[Profile, ...]:
    """Each profile with the rows of that sequence length, or of its first. Raises InputFault if it has none."""
    if length is None:
        return tuple(map(at_first_length, profiles))
    lengths = [
        tuple(known for known in sequence_lengths(profile_rows) if known is not None)
        for profile_rows in profiles
    ]
    for profile, known in zip(profiles, lengths, strict=True):
        if length not in known and (known or not any(lengths)):
            raise InputFault(
                "--sequence-length",
                f"is {length}, and the profile of {profile.source} has no row of that length",
                f"Give one of its lengths: {', '.join(map(str, sorted(known)))}."
                if known
                else "No profile names a sequence length: leave the option out, or profile with --sequence-lengths.",
            )
    return tuple(
        at_sequence_length(profile, length) if known else profile
        for profile, known in zip(profiles, lengths, strict=True)
    )


def _forbid_variants(
    models: Sequence[PlanModel], forbidden: Collection[tuple[str, str]]
) -> tuple[PlanModel, ...]:
    """The models with these variants marked as not allowed."""
    known = [(model.name, variant.name) for model in models for variant in model.variants]
    for pair in forbidden:
        if pair not in known:
            raise InputFault(
                "--forbid",
                f"unknown variant {quoted('='.join(pair))}",
                suggestion("=".join(pair), ["=".join(variant_key) for variant_key in known], "variants"),
            )
    return tuple(
        replace(
            model,
            variants=tuple(
                replace(variant, allowed=(model.name, variant.name) not in forbidden)
                for variant in model.variants
            ),
        )
        for model in models
    )


def model_names(profiles: Sequence[Profile], taken: Collection[str] = ()) -> list[str]:
    """The name of each profile's model in a request that already has the names `taken`.

    Models of one file get the file's name and their own, `nets-Small` and `nets-Large`; a second `bert` is `bert-2`.
    """
    short = [model_name(profile) for profile in profiles]
    names: list[str] = []
    for profile, name in zip(profiles, short, strict=True):
        path, _, inner = profile.source.rpartition(":")
        if path.endswith(".py") and not profile.name and (name in taken or short.count(name) > 1):
            name = f"{name}-{inner}"
        names.append(free_name(name, (*taken, *names), "-"))
    return names


def _link_of(candidates: Sequence[PartitionOutcome]) -> float | None:
    """The slowest link for which candidates were found; None if none has one."""
    links = (outcome.devices.link_gb_per_s for outcome in candidates if outcome.devices)
    return min(filter(None, links), default=None)


def _match_candidates(
    candidates: Sequence[PartitionOutcome], profiles: Sequence[Profile]
) -> list[list[_Cut]]:
    """The candidates of each profile: matched by architecture hash, else by source, else by node ids."""
    matches: list[list[_Cut]] = [[] for _ in profiles]
    for outcome in candidates:
        for index, profile in enumerate(profiles):
            same_hash = outcome.architecture_hash and outcome.architecture_hash == profile.architecture_hash
            same_source = (
                not outcome.architecture_hash and outcome.source and outcome.source == profile.source
            )
            known = {node.id for node in profile.nodes}
            same_nodes = (
                not outcome.architecture_hash
                and not outcome.source
                and outcome.candidates
                and known.issuperset(name for stage in outcome.candidates[0].stages for name in stage)
            )
            if same_hash or same_source or same_nodes:
                matches[index].extend((candidate, outcome.largest_batch) for candidate in outcome.candidates)
                break
        else:
            label = outcome.source or outcome.architecture_hash[:12] or "a model without a source"
            known_source = outcome.source and outcome.source in {profile.source for profile in profiles}
            raise InputFault(
                "--candidates",
                f"the cuts of {label} are of another architecture or version than its profile"
                if known_source
                else f"the cuts of {label} belong to none of the profiles",
                "Profile the model again and partition it again."
                if known_source
                else "Pass that model's profile too, or partition again.",
            )
    return matches


def _variants(profile: Profile, candidates: Sequence[_Cut], slices: _SliceKeys) -> tuple[Variant, ...]:
    """The whole model first, then a variant for each candidate of at least two stages; equal cuts are merged.

    A variant has no estimated points at batches that parts of the model cannot run.
    """
    whole = _rows(profile, "whole", slices)
    variants = [Variant(name="whole", stages=(Stage("whole", points_of(whole)),))]
    distinct: dict[tuple[frozenset[str], ...], _Cut] = {}
    for candidate, largest_batch in candidates:
        if len(candidate.stages) > 1:
            distinct.setdefault(tuple(map(frozenset, candidate.stages)), (candidate, largest_batch))
    for number, (candidate, largest_batch) in enumerate(distinct.values(), start=1):
        parts, peaks = len(candidate.stages), len(candidate.peak_memory_bytes)
        if peaks != parts:
            raise InputFault(
                f"--candidates: cut {number}, peak_memory_bytes",
                f"has {peaks} figures for {parts} stages",
                "Give one figure for each stage, or partition again.",
            )
        names = [f"cut{number}.{index}of{parts}" for index in range(1, parts + 1)]
        runnable = [row for row in whole if largest_batch is None or row.batch_size <= largest_batch]
        estimated = stage_rows(profile, runnable, candidate, names)
        fixed, per_request = cut_bytes_of(candidate)
        variants.append(
            Variant(
                name=f"cut{number}",
                stages=tuple(
                    Stage(name, points_of(_merge_rows(_rows(profile, name, slices), rows)), tuple(nodes))
                    for name, rows, nodes in zip(names, estimated, candidate.stages, strict=True)
                ),
                cut_bytes=fixed,
                cut_bytes_per_request=per_request,
            )
        )
    return tuple(variants)


def cut_bytes_of(candidate: PartitionCandidate) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`cut_bytes` and `cut_bytes_per_request` of the variant of a candidate.

    A candidate without bytes that grow with the batch (from no graph, or an older version) sends the bytes of the
    traced batch at every batch size.
    """
    if len(candidate.cut_bytes_per_request) != len(candidate.cut_bytes):
        return tuple(map(float, candidate.cut_bytes)), ()
    per_request = candidate.cut_bytes_per_request if any(candidate.cut_bytes_per_request) else ()
    return candidate.cut_bytes_fixed, per_request


def _merge_rows(measured: Sequence[ProfileRow], estimated: Sequence[ProfileRow]) -> list[ProfileRow]:
    """The profile's own rows of a stage, and the estimated ones for its other keys."""
    known = {_key(row) for row in measured}
    return [*measured, *(row for row in estimated if _key(row) not in known)]


def _key(row: ProfileRow) -> tuple[str, str | None, int, int]:
    return (row.gpu_type, row.profile, row.batch_size, row.processes)


def _slices_of(gpus: Sequence[FleetEntry]) -> _SliceKeys:
    """The slices of this fleet that rows of a profile may be on."""
    slices: set[tuple[str, str | None]] = set()
    for entry in gpus:
        kind = gpu_type(entry.type)
        if is_unpartitioned(entry):
            slices.add((entry.type, None))
        else:
            slices |= {(point_type(entry.type), known.name) for known in kind.profiles}
    return slices


def _rows(profile: Profile, stage: str, slices: _SliceKeys) -> list[ProfileRow]:
    """Rows of a stage on the fleet's slices, one a key: measured before emulated before estimated.

    Skips a number of SMs that is no slice of the catalogue (`sm:20`).
    """
    best: dict[tuple[str, str | None, int, int], ProfileRow] = {}
    for row in profile.rows:
        if row.stage != stage or (row.gpu_type, row.profile) not in slices or row.throughput_rps <= 0:
            continue
        key = _key(row)
        if key not in best or BASES.index(row.basis) < BASES.index(best[key].basis):
            best[key] = row
    for row in best.values():
        _check_interval(profile, row)
    return list(best.values())


def _check_interval(profile: Profile, row: ProfileRow) -> None:
    """Reject a row outside its interval, as tables do, instead of clamping: it is unknown which figure is wrong."""
    low = row.throughput_rps if row.low_rps is None else row.low_rps
    high = row.throughput_rps if row.high_rps is None else row.high_rps
    if not low <= row.throughput_rps <= high:
        raise InputFault(
            f"profile of {profile.source}, {row.stage} on {row.gpu_type} {row.profile}, "
            f"batch {row.batch_size}, processes {row.processes}",
            f"throughput_rps {row.throughput_rps:g} is outside its interval, {low:g} to {high:g}",
            "Correct the interval, or leave it out.",
        )


def _instance_memory_gib(row: ProfileRow) -> float | None:
    """GiB of an instance; on a host, the measured memory of each of its processes."""
    if row.memory_gib is None or row.gpu_type != "CPU":
        return row.memory_gib
    return row.memory_gib * row.processes


def points_of(rows: Sequence[ProfileRow]) -> tuple[Point, ...]:
    """Points of a stage from rows of a profile."""
    return tuple(
        Point(
            gpu_type=row.gpu_type,
            profile=WHOLE_GPU if row.profile is None else row.profile,
            batch_size=row.batch_size,
            processes=row.processes,
            throughput_rps=row.throughput_rps,
            latency_ms=row.latency_ms,
            memory_gib=_instance_memory_gib(row),
            basis=row.basis,
            low_rps=row.low_rps,
            high_rps=row.high_rps,
            pace=row.pace,
        )
        for row in rows
    )
