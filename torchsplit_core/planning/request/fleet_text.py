"""A fleet and its layouts as one line of text, as commands and tables take them.

    fleet   = entry, entry, …
    entry   = [COUNTx]TYPE[:MIG] or ID=TYPE[:MIG], then any of @cost=N, @node=NAME, @layouts=LAYOUT/LAYOUT/…
    MIG     = whole or either
    layout  = [COUNTx]PROFILE+[COUNTx]PROFILE+…

`2xA100-80GB,1xA30-24GB:whole,1xCPU-16c` (`:whole` leaves a GPU whole, MIG off; `:either` lets the plan decide;
`CPU-16c.64gib` has 64 GiB), or `node0/gpu0=A100-80GB@cost=2@node=a@layouts=7x1g.10gb/3g.40gb+4g.40gb`. Ids and nodes
with a comma, an equals sign or an @ cannot be written this way; request files and tables take them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.values import FleetEntry, InputFault
from torchsplit_core.values.errors import quoted
from torchsplit_core.values.limits import check_number

Layouts = tuple[tuple[str, ...], ...]

_EXAMPLE = (
    "Write for example 2xA100-80GB, or node0/gpu0=A100-80GB@cost=2@node=a@layouts=7x1g.10gb/3g.40gb+4g.40gb."
)
_OPTIONS = ("cost", "node", "layouts")
_COUNT_DIGITS = 7


def parse_fleet(text: str, where: str = "--gpus") -> tuple[FleetEntry, ...]:
    """The fleet's entries. Raises InputFault for a malformed entry, or an unknown type, count or option."""
    entries = tuple(_entry(part, where) for part in filter(None, (item.strip() for item in text.split(","))))
    if not entries:
        raise InputFault(where, f"{quoted(text)} names no GPU", "Give at least one, for example 1xA100-80GB.")
    return entries


def parse_layouts(text: str, where: str) -> Layouts | None:
    """The given layouts; None (every legal one) for an empty text. Raises InputFault for a malformed layout."""
    if not text.strip():
        return None
    return tuple(_layout(part.strip(), where) for part in text.split("/"))


def format_layouts(layouts: Layouts | None) -> str:
    """Layouts as `parse_layouts` reads them; an empty text for None."""
    return "/".join(
        "+".join(f"{count}x{name}" if count > 1 else name for name, count in Counter(layout).items())
        for layout in layouts or ()
    )


def _entry(part: str, where: str) -> FleetEntry:
    head, *rest = (item.strip() for item in part.split("@"))
    name, equals, kind = (item.strip() for item in head.rpartition("="))
    match = re.fullmatch(r"(?:(\d+)x)?([A-Za-z0-9.\-]+)(:whole|:either)?", kind)
    if not match or "=" in name or bool(name) != bool(equals):
        raise InputFault(
            where,
            f"{quoted(part)} is not [COUNTx]TYPE or ID=TYPE, with :whole, :either or options behind it",
            _EXAMPLE,
        )
    if match[1] and len(match[1]) > _COUNT_DIGITS:
        raise InputFault(
            where, f"{quoted(part)} has a count of {len(match[1])} digits", "Give the number of the GPUs."
        )
    count = int(match[1] or 1)
    if count < 1:
        raise InputFault(
            where, f"{quoted(part)} has the count 0", "Give at least one GPU, or leave the type out."
        )
    if name and count > 1:
        raise InputFault(
            where, f"{quoted(part)} repeats a GPU that has an id", "Leave the id out, or the count."
        )
    options = _options(part, rest, where)
    known = gpu_type(match[2])
    if match[3] and known.divided == "cores":
        raise InputFault(
            where, f"{quoted(part)} leaves a CPU whole, and only GPUs can be", f"Write {known.name} alone."
        )
    return FleetEntry(
        type=known.name,
        id=name or None,
        count=count,
        layouts=parse_layouts(options["layouts"], f"{where} {part}") if "layouts" in options else None,
        cost=_cost(options["cost"], f"{where} {part}, cost") if "cost" in options else None,
        node=options.get("node"),
        mig="either" if match[3] == ":either" else not match[3],
    )


def _options(part: str, texts: Sequence[str], where: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in texts:
        key, equals, value = (item.strip() for item in text.partition("="))
        if key not in _OPTIONS or not equals or not value or "=" in value:
            raise InputFault(
                f"{where} {part}",
                f"{quoted(f'@{text}')} is none of {', '.join(f'@{o}=…' for o in _OPTIONS)}",
                _EXAMPLE,
            )
        if key in options:
            raise InputFault(f"{where} {part}", f"gives @{key} twice", "Keep one of them.")
        options[key] = value
    return options


def _cost(text: str, where: str) -> float:
    try:
        cost = float(text)
    except ValueError:
        raise InputFault(where, f"is {quoted(text)}, not a number", "Write for example @cost=2.") from None
    check_number(where, cost)
    return cost


def _layout(text: str, where: str) -> tuple[str, ...]:
    """A layout's profiles. A plus is a separator before a digit only: in `1g.10gb+me` it belongs to the name."""
    names: list[str] = []
    for item in re.split(r"\+(?=\s*\d)", text):
        match = re.fullmatch(r"(?:(\d{1,2})x)?(\d+[a-z]\S*)", item.strip())
        if not match or (match[1] and int(match[1]) < 1):
            raise InputFault(
                where,
                f"{quoted(text)} is not a layout",
                "Join profiles by + and layouts by /, for example 7x1g.10gb/3g.40gb+4g.40gb.",
            )
        names += [match[2]] * int(match[1] or 1)
    return tuple(names)
