"""The members of co-locations by number: models, and stages of their variants.

A member of `colocations[].models` is a model by name, or a stage of one of its variants: `MODEL/VARIANT.STAGE`, or
`MODEL/STAGE` if no other variant of the model has a stage of that name. It is present on every GPU with an instance of
the model, or of that stage. A model's number is its index in the request; stages are numbered after all models.

Routed co-locations concern traffic, not presence: they are `MemberFlow`s between consecutive members of a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchsplit_core.values import Colocation, InputFault, PlanModel, PlanRequest, Variant
from torchsplit_core.values.errors import quoted, suggestion


@dataclass(frozen=True, slots=True)
class ColocationMember:
    """A model by its index in the request; or a stage of a variant, by their indices."""

    model: int
    variant: int | None = None
    stage: int | None = None

    def matches(self, model: int, variant: int, stage: int) -> bool:
        """Whether an instance of this stage makes the member present on its GPU."""
        return self.model == model and self.variant in (None, variant) and self.stage in (None, stage)

    def stages_of(self, model: int, variant: int, stages: int) -> tuple[int, ...]:
        """The stages of a variant whose slowest gives the member's rate; none if the member is not in it."""
        return tuple(stage for stage in range(stages) if self.matches(model, variant, stage))


@dataclass(frozen=True, slots=True)
class IndexedColocation:
    """A co-location by its members' numbers, and the bytes of each GPU on which it is separated."""

    members: tuple[int, ...]
    hard: bool
    bytes_per_request: float


@dataclass(frozen=True, slots=True)
class MemberFlow:
    """Two consecutive members of a routed co-location, and the bytes that a request carries between them.

    `rate_rps` requests come each second: the lesser of the two models' demands.
    """

    first: ColocationMember
    second: ColocationMember
    bytes_per_request: float
    rate_rps: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes/s if no request stays on its GPU."""
        return self.bytes_per_request * self.rate_rps

    def cross_gpu_bytes(self, kept_rps: float) -> float:
        """Bytes/s between GPUs if this many requests/s can stay on their GPU."""
        return self.bytes_per_request * max(0.0, self.rate_rps - kept_rps)


@dataclass(frozen=True, slots=True)
class ColocationIndex:
    """All co-locations of a request. `stages` numbers the stages (model, variant, stage) that are members.

    `flows` are the routed ones; everything else is of the hard and soft ones.
    """

    colocations: tuple[IndexedColocation, ...] = ()
    models: frozenset[int] = frozenset()
    stages: Mapping[tuple[int, int, int], int] | None = None
    flows: tuple[MemberFlow, ...] = ()

    @property
    def members(self) -> frozenset[int]:
        """Every member."""
        return self.models.union((self.stages or {}).values())

    @property
    def hard_members(self) -> frozenset[int]:
        """The members of hard co-locations."""
        return frozenset(
            member for colocation in self.colocations if colocation.hard for member in colocation.members
        )

    @property
    def soft(self) -> tuple[IndexedColocation, ...]:
        """Those whose separation costs something."""
        return tuple(
            colocation
            for colocation in self.colocations
            if not colocation.hard and colocation.bytes_per_request > 0
        )

    def members_at(self, model: int, variant: int, stage: int) -> frozenset[int]:
        """The members that an instance of a stage makes present on its GPU."""
        members = {model} & self.models
        stage_member = (self.stages or {}).get((model, variant, stage))
        return frozenset(members if stage_member is None else {*members, stage_member})

    def most_specific(self, model: int, variant: int, stage: int) -> int | None:
        """The most specific of them: the stage before its model; None if there is none."""
        return max(self.members_at(model, variant, stage), default=None)

    def implied_models(self, present: frozenset[int]) -> frozenset[int]:
        """The members that are models of stages among the present."""
        stages = self.stages or {}
        return frozenset(key[0] for key, number in stages.items() if number in present) & self.models

    def minimal_members(self, present: frozenset[int]) -> frozenset[int]:
        """The members that need their own instance for all of these to be present."""
        return present - self.implied_models(present)

    def separated_bytes(self, present: frozenset[int]) -> float:
        """Bytes per request of the soft co-locations that are separated on a GPU with these members."""
        return sum(
            colocation.bytes_per_request
            for colocation in self.colocations
            if not colocation.hard
            and 0 < len(present.intersection(colocation.members)) < len(colocation.members)
        )


def index_colocations(request: PlanRequest) -> ColocationIndex:
    """The co-locations of a request. Raises InputFault for a name that is not that of exactly one member."""
    numbers: dict[ColocationMember, int] = {}
    stages: dict[tuple[int, int, int], int] = {}
    indexed = []
    for index, item in enumerate(request.colocations):
        if item.mode == "routed":
            continue
        members = members_of(request.models, item, f"colocations[{index}]")
        for member in members:
            if member in numbers:
                continue
            if member.variant is None or member.stage is None:
                numbers[member] = member.model
            else:
                numbers[member] = stages[member.model, member.variant, member.stage] = len(
                    request.models
                ) + len(stages)
        weight = separation_bytes(request.models, item, members)
        indexed.append(
            IndexedColocation(tuple(numbers[member] for member in members), item.mode == "hard", weight)
        )
    models = frozenset(member.model for member in numbers if member.variant is None)
    return ColocationIndex(tuple(indexed), models, stages, flows_of(request))


def flows_of(request: PlanRequest) -> tuple[MemberFlow, ...]:
    """Flows of the routed co-locations. Raises InputFault for an unknown name, or unknown bytes."""
    flows = []
    for index, item in enumerate(request.colocations):
        if item.mode != "routed":
            continue
        where = f"colocations[{index}]"
        for first, second in pairwise(members_of(request.models, item, where)):
            carried = item.bytes_per_request or _request_bytes_between(request.models, first, second)
            if not carried:
                raise InputFault(
                    where,
                    f"is routed, and its bytes_per_request is {item.bytes_per_request:g}",
                    "Say how many bytes a request carries from one to the next; only neighbouring stages of a variant "
                    "with cut_bytes_per_request need none.",
                )
            rate = min(request.models[member.model].demand_rps for member in (first, second))
            flows.append(MemberFlow(first, second, carried, rate))
    return tuple(flows)


def members_of(models: Sequence[PlanModel], item: Colocation, where: str) -> tuple[ColocationMember, ...]:
    """The members of a co-location, in order. Raises InputFault for a name that is not that of exactly one member."""
    return tuple(_find_member(models, name, where) for name in item.models)


def colocated_models(models: Sequence[PlanModel], item: Colocation) -> frozenset[str]:
    """The names of a co-location's models. Raises InputFault as `members_of` does."""
    return frozenset(models[member.model].name for member in members_of(models, item, "colocations"))


def member_names(models: Sequence[PlanModel]) -> tuple[str, ...]:
    """All names for co-locations: the models, then stages of variants with several stages, each by one name."""
    names = [model.name for model in models]
    for model in models:
        cut = [variant for variant in model.variants if len(variant.stages) > 1]
        stage_names = [stage.name for variant in model.variants for stage in variant.stages]
        for variant in cut:
            for stage in variant.stages:
                short = f"{model.name}/{stage.name}"
                alone = stage_names.count(stage.name) == 1 and short not in names
                names.append(short if alone else f"{model.name}/{variant.name}.{stage.name}")
    return tuple(dict.fromkeys(names))


def all_member_names(models: Sequence[PlanModel]) -> tuple[str, ...]:
    """Every way to name a member, both ways for stages; ambiguous names are rejected when used."""
    names = [model.name for model in models]
    for model in models:
        for variant in model.variants:
            for stage in variant.stages:
                names += [f"{model.name}/{stage.name}", f"{model.name}/{variant.name}.{stage.name}"]
    return tuple(dict.fromkeys(names))


def separation_bytes(
    models: Sequence[PlanModel], item: Colocation, members: Sequence[ColocationMember]
) -> float:
    """Bytes per request of a separation: those given, else those between two neighbouring stages.

    The latter are the bytes that a request adds across their cut; if it adds none, the bytes of a batch.
    """
    if item.bytes_per_request > 0 or len(members) != 2:
        return item.bytes_per_request
    cut = _cut_between(models, *members)
    return 0.0 if cut is None else _request_bytes_at(*cut) or cut[0].cut_bytes[cut[1]]


def _request_bytes_between(
    models: Sequence[PlanModel], first: ColocationMember, second: ColocationMember
) -> float:
    """Bytes that a request adds across the cut between two neighbouring stages; 0 for other members."""
    cut = _cut_between(models, first, second)
    return 0.0 if cut is None else _request_bytes_at(*cut)


def _request_bytes_at(variant: Variant, cut: int) -> float:
    return variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0


def _cut_between(
    models: Sequence[PlanModel], first: ColocationMember, second: ColocationMember
) -> tuple[Variant, int] | None:
    """The cut between two neighbouring stages of a variant; None for other members."""
    if (first.model, first.variant) != (second.model, second.variant) or first.variant is None:
        return None
    if first.stage is None or second.stage is None or abs(first.stage - second.stage) != 1:
        return None
    return models[first.model].variants[first.variant], min(first.stage, second.stage)


def _find_member(models: Sequence[PlanModel], name: str, where: str) -> ColocationMember:
    """The member of a name: a model's name first, then a stage after a model's name and "/"."""
    for index, model in enumerate(models):
        if model.name == name:
            return ColocationMember(index)
    matches: dict[ColocationMember, str] = {}
    known: list[str] = []
    for m, model in enumerate(models):
        if not name.startswith(f"{model.name}/"):
            continue
        rest = name[len(model.name) + 1 :]
        for v, variant in enumerate(model.variants):
            for s, stage in enumerate(variant.stages):
                full = f"{variant.name}.{stage.name}"
                known.append(f"{model.name}/{full}")
                if rest in (stage.name, full):
                    matches[ColocationMember(m, v, s)] = known[-1]
    if len(matches) == 1:
        return next(iter(matches))
    if matches:
        raise InputFault(
            where,
            f"{quoted(name)} names {len(matches)} stages",
            f"Write one of {', '.join(matches.values())}.",
        )
    if known:
        raise InputFault(where, f"unknown stage {quoted(name)}", suggestion(name, known, "stages"))
    raise InputFault(
        where,
        f"unknown model {quoted(name)}",
        suggestion(name, [model.name for model in models], "models")
        + " A stage of a model is MODEL/VARIANT.STAGE.",
    )
