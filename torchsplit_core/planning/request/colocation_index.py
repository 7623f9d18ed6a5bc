"""Who a co-location ties together: models, and stages of their variants.

A member of `colocations[].models` is a model by its name, or a stage of one of its variants:
`MODEL/VARIANT.STAGE`, or `MODEL/STAGE` where no other variant of the model has a stage of that name. It stands
on every GPU where an instance of the model, or of that stage, does. Members have numbers: a model its index in
the request, and stages those behind all models.

Routed co-locations ask where requests flow, not who is present: they are `MemberFlow`s, between members that follow one
another in a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torchsplit_core.values import Colocation, InputFault, PlanModel, PlanRequest, Variant
from torchsplit_core.values.errors import quoted, suggestion


@dataclass(frozen=True, slots=True)
class ColocationMember:
    """A model by its index in the request; or one stage of one of its variants, by theirs in it."""

    model: int
    variant: int | None = None
    stage: int | None = None

    def matches(self, model: int, variant: int, stage: int) -> bool:
        """Whether an instance of this stage puts the member on its GPU."""
        return self.model == model and self.variant in (None, variant) and self.stage in (None, stage)

    def stages_of(self, model: int, variant: int, stages: int) -> tuple[int, ...]:
        """Of a variant's stages those whose slowest is what the member serves; none where it does not run this way."""
        return tuple(stage for stage in range(stages) if self.matches(model, variant, stage))


@dataclass(frozen=True, slots=True)
class IndexedColocation:
    """A co-location by the numbers of its members, and the bytes that each GPU where it is torn counts for."""

    members: tuple[int, ...]
    hard: bool
    bytes_per_request: float


@dataclass(frozen=True, slots=True)
class MemberFlow:
    """Two members that follow one another in a routed co-location, and what a request carries from one to the other.

    `rate_rps` of them come each second: the lesser of the two models' demands.
    """

    first: ColocationMember
    second: ColocationMember
    bytes_per_request: float
    rate_rps: float

    @property
    def bytes_per_s(self) -> float:
        """What is sent where nothing can stay on its GPU."""
        return self.bytes_per_request * self.rate_rps

    def cross_gpu_bytes(self, kept_rps: float) -> float:
        """Bytes/s that leave where so many requests/s can stay on their GPU."""
        return self.bytes_per_request * max(0.0, self.rate_rps - kept_rps)


@dataclass(frozen=True, slots=True)
class ColocationIndex:
    """All co-locations of a request. `stages` has the numbers of stages (model, variant, stage) that are members.

    `flows` are the routed ones; all else is about the hard and soft.
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
    def soft(self) -> tuple[IndexedColocation, ...]:
        """Those that cost something where they are torn."""
        return tuple(
            colocation
            for colocation in self.colocations
            if not colocation.hard and colocation.bytes_per_request > 0
        )

    def members_at(self, model: int, variant: int, stage: int) -> frozenset[int]:
        """The members that an instance of a stage puts on its GPU."""
        members = {model} & self.models
        stage_member = (self.stages or {}).get((model, variant, stage))
        return frozenset(members if stage_member is None else {*members, stage_member})

    def most_specific(self, model: int, variant: int, stage: int) -> int | None:
        """Of these the one that says most: the stage before its model; None where there is none."""
        return max(self.members_at(model, variant, stage), default=None)

    def implied_models(self, present: frozenset[int]) -> frozenset[int]:
        """The models that stand wherever stages among the present do, as far as they are members."""
        stages = self.stages or {}
        return frozenset(key[0] for key, number in stages.items() if number in present) & self.models

    def minimal_members(self, present: frozenset[int]) -> frozenset[int]:
        """The members that need an instance of their own for all of these to be present."""
        return present - self.implied_models(present)

    def separated_bytes(self, present: frozenset[int]) -> float:
        """Bytes per request of the soft co-locations that a GPU with these members tears apart."""
        return sum(
            colocation.bytes_per_request
            for colocation in self.colocations
            if not colocation.hard
            and 0 < len(present.intersection(colocation.members)) < len(colocation.members)
        )


def index_colocations(request: PlanRequest) -> ColocationIndex:
    """The co-locations of a request. Raises InputFault where a name is not that of one member."""
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
    """What the routed co-locations carry. Raises InputFault for a name that is none, or bytes that nobody says."""
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
    """The members of a co-location, in its order. Raises InputFault where a name is not that of one member."""
    return tuple(_find_member(models, name, where) for name in item.models)


def colocated_models(models: Sequence[PlanModel], item: Colocation) -> frozenset[str]:
    """The names of the models that a co-location is about. Raises InputFault as `members_of` does."""
    return frozenset(models[member.model].name for member in members_of(models, item, "colocations"))


def member_names(models: Sequence[PlanModel]) -> tuple[str, ...]:
    """Everything that a co-location may name: the models, then stages of variants with several, each by one name."""
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
    """Every way to name a member, of a stage both; one that names several stages is refused where it is used."""
    names = [model.name for model in models]
    for model in models:
        for variant in model.variants:
            for stage in variant.stages:
                names += [f"{model.name}/{stage.name}", f"{model.name}/{variant.name}.{stage.name}"]
    return tuple(dict.fromkeys(names))


def separation_bytes(
    models: Sequence[PlanModel], item: Colocation, members: Sequence[ColocationMember]
) -> float:
    """Bytes per request that a separation weighs: those given, else what two neighbouring stages hand on.

    The latter are what a request adds across their cut; where no request adds any, the bytes of a batch.
    """
    if item.bytes_per_request > 0 or len(members) != 2:
        return item.bytes_per_request
    cut = _cut_between(models, *members)
    return 0.0 if cut is None else _request_bytes_at(*cut) or cut[0].cut_bytes[cut[1]]


def _request_bytes_between(
    models: Sequence[PlanModel], first: ColocationMember, second: ColocationMember
) -> float:
    """Bytes that a request adds across the cut between two neighbouring stages; 0 for any other two."""
    cut = _cut_between(models, first, second)
    return 0.0 if cut is None else _request_bytes_at(*cut)


def _request_bytes_at(variant: Variant, cut: int) -> float:
    return variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0


def _cut_between(
    models: Sequence[PlanModel], first: ColocationMember, second: ColocationMember
) -> tuple[Variant, int] | None:
    """The cut between two neighbouring stages of one variant; None for any other two."""
    if (first.model, first.variant) != (second.model, second.variant) or first.variant is None:
        return None
    if first.stage is None or second.stage is None or abs(first.stage - second.stage) != 1:
        return None
    return models[first.model].variants[first.variant], min(first.stage, second.stage)


def _find_member(models: Sequence[PlanModel], name: str, where: str) -> ColocationMember:
    """The member of a name: a model's own name first, then a stage behind a model's name and "/"."""
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
