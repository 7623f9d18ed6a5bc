"""A rank's samples of each step, fetched ahead by the worker processes of its loader."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchsplit_core.model_source import foreign_code
from torchsplit_core.training.rank_loader import MicroBatch, RankBatches
from torchsplit_core.values import InputFault

Planned = tuple[int, int, tuple[int, ...]]
"""A step, the number of a micro-batch in it, and its samples."""


@contextlib.contextmanager
def data_faults() -> Iterator[None]:
    """Turn what fetching samples raises into an InputFault, also in a worker, whose words torch puts into a traceback.

    Raises InputFault too if a worker was killed.
    """
    with foreign_code("the data"):
        try:
            yield
        except StopIteration:
            raise
        except Exception as error:
            text = str(error).strip()
            if text.startswith("Caught ") and "in DataLoader worker" in text:
                raise InputFault(
                    "the data", f"raised {text.splitlines()[-1]} in a worker", "Mend the model's code."
                ) from error
            if text.startswith("DataLoader worker"):
                raise InputFault(
                    "the data",
                    f"has lost a worker: {text}",
                    "Use fewer workers, or free memory, /dev/shm too; then resume the run.",
                ) from error
            raise


class WorkerBatches(RankBatches):
    """`RankBatches` whose samples come from the loader's own worker processes, with its other settings.

    Which samples a micro-batch has is known ahead; where shares or micro-batches have changed since it was fetched, the
    workers start again.
    """

    def __init__(self, loader: DataLoader[Any], *rest: Any) -> None:
        super().__init__(loader, *rest)
        self._loader = loader
        self._planned: deque[Planned] = deque()
        self._fetched: Iterator[Any] = iter(())

    def iter_micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches of that step."""
        parts = self.parts(step)
        for number, part in enumerate(parts):
            wanted = step, number, part or self.uncounted(step)
            if not self._planned or self._planned[0] != wanted:
                self._start(step, number)
            with data_faults():
                batch = next(self._fetched)
            self._planned.popleft()
            yield MicroBatch(batch, len(part), number + 1 == len(parts))

    def _start(self, step: int, number: int) -> None:
        """Start workers that fetch from this micro-batch on."""
        self._planned.clear()
        loader = self._loader
        # The loader's first number comes from a generator of its own: the run's random numbers stay as they are.
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) * self.ranks + self.rank)
        self._fetched = iter(
            DataLoader(
                self.data,
                batch_sampler=_Plan(self, step, number),
                num_workers=loader.num_workers,
                collate_fn=self.collate,
                pin_memory=loader.pin_memory,
                timeout=loader.timeout,
                worker_init_fn=loader.worker_init_fn,
                multiprocessing_context=loader.multiprocessing_context,
                prefetch_factor=loader.prefetch_factor,
                generator=generator,
            )
        )

    def plan(self, step: int, number: int) -> Iterator[list[int]]:
        """The samples of all micro-batches from this one on, as they are divided now."""
        for later in itertools.count(step):
            for place, part in enumerate(self.parts(later)):
                if later > step or place >= number:
                    indices = part or self.uncounted(later)
                    self._planned.append((later, place, indices))
                    yield list(indices)


class _Plan:
    """A batch sampler over `WorkerBatches.plan`."""

    def __init__(self, batches: WorkerBatches, step: int, number: int) -> None:
        self._batches, self._step, self._number = batches, step, number

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches.plan(self._step, self._number)
