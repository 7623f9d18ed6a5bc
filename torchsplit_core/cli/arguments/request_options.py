"""Options of `request` except demands: co-locations, caps, penalties, and the throughputs to plan with."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.values import Colocation, InputFault
from torchsplit_core.values.errors import quoted, suggestion

if TYPE_CHECKING:
    from torchsplit_core.values import ColocationMode, PlanModel, PlanRequest

PLAN_AT = ("nominal", "low")
"""Choices of `--plan-at`: the throughputs themselves, or the lower ends of their intervals."""


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this module to the parser of `request`."""
    parser.add_argument(
        "--colocate",
        action="append",
        default=[],
        metavar="A+B",
        help="models, or stages as MODEL/VARIANT.STAGE: on every GPU all of them or none",
    )
    parser.add_argument(
        "--routed",
        action="append",
        default=[],
        metavar="A+B[=BYTES]",
        help="rather on one GPU: bytes a request carries from each to the next, fewest a second between GPUs",
    )
    parser.add_argument(
        "--prefer-together",
        action="append",
        default=[],
        metavar="A+B=BYTES",
        help="rather on one GPU: bytes that each GPU with one and without the other counts for",
    )
    parser.add_argument(
        "--cap", nargs="+", default=[], metavar="MODEL", help="throughput above its demand counts for nothing"
    )
    parser.add_argument(
        "--forbid", action="append", default=[], metavar="MODEL=VARIANT", help="kept, and out of every plan"
    )
    parser.add_argument("--max-tenants", type=int, metavar="N", help="of a slice that is shared")
    parser.add_argument(
        "--memory-penalty", type=float, metavar="GAMMA", help="paid for each GiB too much (default: a limit)"
    )
    parser.add_argument(
        "--separation-weight",
        type=float,
        default=0.0,
        metavar="W",
        help="paid for each byte between models preferred together and apart (default: they break ties)",
    )
    parser.add_argument(
        "--sequence-length",
        type=int,
        metavar="N",
        help="take the rows of this length of profiles with several (default: a profile's first)",
    )
    add_plan_at(parser, default="nominal")


def add_plan_at(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add `--plan-at`; default None keeps the request's value."""
    parser.add_argument(
        "--plan-at",
        choices=PLAN_AT,
        default=default,
        help="low: plan with the lower ends of the throughputs' 90 %% intervals",
    )


def demands_as_minima_option(parser: argparse.ArgumentParser) -> None:
    """Add `--demands-as-minima`."""
    parser.add_argument(
        "--demands-as-minima",
        action="store_true",
        help="every model without a minimum has to get its demand (the fewest GPUs owe the minima alone)",
    )


def apply_demands_as_minima(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request; with `--demands-as-minima`, every missing minimum is set to the demand."""
    if not options.demands_as_minima:
        return request
    from torchsplit_core.planning.request.edit import with_demands_as_minima

    return with_demands_as_minima(request)


def with_colocations(request: PlanRequest, options: argparse.Namespace) -> PlanRequest:
    """The request with the co-locations of its models and stages that the options name. Raises InputFault."""
    models = request.models
    return replace(
        request,
        colocations=(
            *(Colocation(_group("--colocate", entry, models)) for entry in _entries(options.colocate)),
            *(
                _soft_colocation("--prefer-together", "soft", entry, models)
                for entry in _entries(options.prefer_together)
            ),
            *(_soft_colocation("--routed", "routed", entry, models) for entry in _entries(options.routed)),
        ),
    )


def request_keywords(options: argparse.Namespace) -> dict[str, Any]:
    """The options as keyword arguments of `build_request`. Raises InputFault."""
    return {
        "cap_at_demand": tuple(_entries(options.cap)),
        "forbidden": tuple(map(_variant, _entries(options.forbid))),
        "max_tenants_per_slice": options.max_tenants,
        "plan_at": options.plan_at,
        "sequence_length": options.sequence_length,
    }


def _entries(texts: Sequence[str]) -> Iterator[str]:
    """The entries of an option that may be repeated or comma-separated."""
    return (part.strip() for text in texts for part in text.split(","))


def _soft_colocation(
    option: str, mode: ColocationMode, entry: str, models: Sequence[PlanModel]
) -> Colocation:
    members, separator, amount = entry.rpartition("=")
    if not separator and mode == "routed":
        # For adjacent stages the model gives the bytes; for others the request's own check requires them.
        return Colocation(_group(option, entry, models), mode)
    try:
        size = float(amount)
    except ValueError:
        separator = ""
    if not separator:
        raise InputFault(
            option,
            f"{quoted(entry)} is not MODEL+MODEL=BYTES",
            "Give the bytes of one request between them, for example clip_text+clip_image=1200000.",
        )
    return Colocation(_group(option, members, models), mode, size)


def _group(option: str, text: str, models: Sequence[PlanModel]) -> tuple[str, ...]:
    """The members joined by plus signs. A name may contain a plus sign if the text can be read in only one way."""
    from torchsplit_core.planning.request.colocation_index import all_member_names, member_names

    names = all_member_names(models)
    readings = list(_readings(text.split("+"), names))
    if len(readings) > 1:
        raise InputFault(
            option,
            f"{quoted(text)} can be read in {len(readings)} ways, since a name has a plus sign",
            "Say it in the request file, under colocations.",
        )
    if not readings:
        unknown = [part.strip() for part in text.split("+") if part.strip() not in names]
        raise InputFault(
            option,
            f"{quoted(text)} names {quoted(unknown[0])}, which is no model of the request and no stage of one",
            suggestion(unknown[0], member_names(models), "models and stages"),
        )
    if len(readings[0]) < 2:
        raise InputFault(
            option,
            f"{quoted(text)} names one model, needs at least two",
            "Join them by +, for example bert+ocr.",
        )
    return readings[0]


def _readings(parts: Sequence[str], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every way to read the parts as names, which may consist of several parts joined by plus signs."""
    if not parts:
        yield ()
    for end in range(1, len(parts) + 1):
        name = "+".join(parts[:end]).strip()
        if name in names:
            for rest in _readings(parts[end:], names):
                yield (name, *rest)


def _variant(entry: str) -> tuple[str, str]:
    model, separator, variant = (item.strip() for item in entry.partition("="))
    if not separator or not model or not variant:
        raise InputFault("--forbid", f"{quoted(entry)} is not MODEL=VARIANT", "Write for example bert=whole.")
    return model, variant
