"""Options that are a number for all, or NAME=NUMBER for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.values import InputFault, quoted


def numbers_by_name(
    option: str, texts: Sequence[str], example: str, what: str = "MODEL"
) -> Iterator[tuple[str | None, float]]:
    """Each entry, parted by commas: its name (None: for all) and its number. Raises InputFault for one that is none."""
    for text in (part for entry in texts for part in entry.split(",")):
        name, separator, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise InputFault(
                option,
                f"{quoted(text)} is neither a number nor {what}=NUMBER",
                f"Write for example {example}.",
            ) from None
        yield name.strip() if separator else None, value
