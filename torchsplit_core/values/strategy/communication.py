"""How a run exchanges gradients: what it may choose by measurement, and what is fixed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from torchsplit_core.values.errors import InputFault, quoted, suggestion
from torchsplit_core.values.fields import Count, Positive

Compression = Literal["bf16", "fp16", "powersgd"]
"""Exchanges that lose part of the gradients: rounded to two bytes, or as products of thin matrices (PowerSGD)."""
Hook = Literal["ddp", "all_reduce", "hierarchical", "bf16", "fp16", "powersgd"]
"""`ddp`: torch's own exchange with its default buckets, nothing measured or timed. `all_reduce`: one of all ranks.
`hierarchical`: within each node, then between the nodes."""
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
HOOKS: tuple[Hook, ...] = get_args(Hook)
WHERE, OPTION = "communication", "--communication"
DEFAULT_RANK = 1
MOST_RANK = 256


@dataclass(frozen=True, slots=True)
class CommunicationRequest:
    """What a run may choose of its exchange of gradients under DDP, and what is fixed.

    `lossy`: compressions that the choice may take; none by default, so that results stay those of a single process.
    `hook`, `bucket_mib`: fixed; None: chosen by measurement. `powersgd_rank`: columns of PowerSGD's matrices, None: 1.
    """

    lossy: tuple[Compression, ...] = ()
    hook: Hook | None = None
    bucket_mib: Positive | None = None
    powersgd_rank: Count | None = None

    @property
    def rank(self) -> int:
        """Columns of PowerSGD's matrices."""
        return DEFAULT_RANK if self.powersgd_rank is None else self.powersgd_rank

    @property
    def open(self) -> bool:
        """Whether anything is left to choose."""
        return self.hook != "ddp" and (self.hook is None or self.bucket_mib is None)


def check_communication(request: CommunicationRequest) -> CommunicationRequest:
    """The request. Raises InputFault for unknown names, numbers that cannot be, and fields that contradict."""
    for name in request.lossy:
        if name not in COMPRESSIONS:
            raise InputFault(
                f"{WHERE}.lossy",
                f"has {quoted(name)}, which is no compression of gradients",
                suggestion(name, COMPRESSIONS, "compressions"),
            )
    if request.hook is not None and request.hook not in HOOKS:
        raise InputFault(
            f"{WHERE}.hook",
            f"is {quoted(request.hook)}, which is no way to exchange gradients",
            suggestion(request.hook, HOOKS, "hooks"),
        )
    rank = request.powersgd_rank
    if rank is not None and not 1 <= rank <= MOST_RANK:
        limit = "below the least value 1" if rank < 1 else f"above the largest value {MOST_RANK}"
        raise InputFault(
            f"{WHERE}.powersgd_rank", f"is {rank}, {limit}", "Give a small number, such as 1 to 4."
        )
    size = request.bucket_mib
    if size is not None and not 0 < size < float("inf"):
        raise InputFault(
            f"{WHERE}.bucket_mib", f"is {size}, not a size above 0", "Give MiB of a bucket, such as 25."
        )
    _check_together(request)
    return request


def _check_together(request: CommunicationRequest) -> None:
    """Raises InputFault for fields of which one leaves another without effect."""
    if request.hook is not None and any(name != request.hook for name in request.lossy):
        others = ", ".join(name for name in request.lossy if name != request.hook)
        raise InputFault(
            f"{WHERE}.lossy",
            f"allows {others}, but hook is fixed to {request.hook}",
            "Give one of the two: lossy leaves the choice to the measurement, hook makes it.",
        )
    if request.hook == "ddp" and request.bucket_mib is not None:
        raise InputFault(
            f"{WHERE}.bucket_mib",
            f"is {request.bucket_mib:g}, but hook is fixed to ddp, which has DDP's default buckets",
            "Fix hook to all_reduce, or leave out bucket_mib.",
        )
    if request.powersgd_rank is not None and "powersgd" not in (request.hook, *request.lossy):
        raise InputFault(
            f"{WHERE}.powersgd_rank",
            f"is {request.powersgd_rank}, but neither hook nor lossy names powersgd",
            "Add powersgd to lossy, fix hook to it, or leave out the rank.",
        )


def parse_communication(text: str) -> CommunicationRequest:
    """The request of `lossy=bf16+powersgd,bucket_mib=8`. Raises InputFault as `check_communication`, and for others."""
    names = [item.name for item in fields(CommunicationRequest)]
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            raise InputFault(
                OPTION, f"has {quoted(name)}, which is no setting", suggestion(name, names, "settings")
            )
        if name in values or not equals or not value:
            problem = f"has {name} twice" if name in values else f"gives {name} no value"
            raise InputFault(OPTION, problem, "Give NAME=VALUE, for example lossy=bf16,bucket_mib=8.")
        values[name] = value
    return check_communication(
        CommunicationRequest(
            lossy=tuple(filter(None, values.get("lossy", "").split("+"))),  # type: ignore[arg-type]
            hook=values.get("hook"),  # type: ignore[arg-type]
            bucket_mib=_number(values, "bucket_mib", float),
            powersgd_rank=_number(values, "powersgd_rank", int),
        )
    )


def format_communication(request: CommunicationRequest) -> str:
    """The text from which `parse_communication` makes the request; "" if it leaves everything open."""
    values = {item.name: getattr(request, item.name) for item in fields(request)}
    values["lossy"] = "+".join(request.lossy)
    return ",".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in values.items()
        if value not in (None, "")
    )


def _number(values: dict[str, str], name: str, kind: type[int] | type[float]) -> Any:
    if name not in values:
        return None
    try:
        return kind(values[name])
    except ValueError:
        words = "a whole number" if kind is int else "a number"
        problem = f"has {name} {quoted(values[name])}, not {words}"
        raise InputFault(OPTION, problem, "Give for example hook=powersgd,powersgd_rank=2.") from None
