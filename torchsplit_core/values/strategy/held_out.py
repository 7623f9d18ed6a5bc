"""When a run is measured on held-out samples, and which of its checkpoints counts as the best."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values.errors import InputFault, quoted

MIN, MAX = "min", "max"


@dataclass(frozen=True, slots=True)
class ValidationOptions:
    """`every`: steps from one measurement to the next, None for none before the end of the run.

    `best`: the metric whose best checkpoint stays, as NAME, NAME:min or NAME:max; without a direction a loss is better
    the smaller, anything else the greater. Raises InputFault for a number below 1 and a direction that is none.
    """

    every: int | None = None
    best: str | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise InputFault(
                "--validate-every", f"is {self.every}, below the least value 1", "Give 1 or more."
            )
        if self.best is None:
            return
        name, colon, direction = self.best.partition(":")
        if not name or (colon and direction not in (MIN, MAX)):
            raise InputFault(
                "--best", f"is {quoted(self.best)}, not a metric", "Give for example accuracy or loss:min."
            )

    @property
    def best_metric(self) -> str | None:
        """The name of the metric, without its direction."""
        return self.best and self.best.partition(":")[0]

    def is_better(self, value: float, before: float | None) -> bool:
        """Whether the value of the metric is better than the best one before; anything is better than none."""
        if before is None:
            return True
        name, _, direction = (self.best or "").partition(":")
        smaller = direction == MIN or (not direction and (name == "loss" or name.endswith("_loss")))
        return value < before if smaller else value > before
