"""The batches of a loader whose samples have no number: each rank reads its own part; the loader keeps its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader

from torchsplit_core.checkpoints.packed_state import pack, unpack
from torchsplit_core.model_source import foreign_code
from torchsplit_core.training.async_checkpoint import preserved_random_state
from torchsplit_core.training.feeding.worker_batches import data_faults
from torchsplit_core.training.rank_loader import MicroBatch, RankBatches
from torchsplit_core.training.sampling import DataPosition
from torchsplit_core.values import InputFault, quoted

LOADER = "loader"
"""What a checkpoint keeps of the loader of data rank 0 is named loader.0."""


def unknown_length() -> InputFault:
    """The fault of a run that does not say its last step, over data whose end is not known."""
    return InputFault(
        "--steps", "is missing, and the data has no length", "Give the step at which the run ends."
    )


class StreamBatches(RankBatches):
    """The batches that a loader gives are the passes of a step: each rank takes as many as make its part of a step.

    All batches of a step are fetched before its first pass, so that ranks can agree how many samples it has: where the
    data ends in the middle of a step, or earlier on one rank than on another, the step has what is left, and each
    sample counts alike. An epoch ends when the data of all ranks has. Raises InputFault for a loader whose batches make
    no step.
    """

    def __init__(
        self, loader: DataLoader[Any], global_batch: int, rank: int, ranks: int, group: dist.ProcessGroup
    ) -> None:
        size = loader.batch_size
        if size is None or global_batch % (size * ranks):
            made = "no size" if size is None else f"{size} samples"
            on = f" on {ranks} data ranks" if ranks > 1 else ""
            raise InputFault(
                "the loader",
                f"has batches of {made}, which do not make the {global_batch} samples of a step{on}",
                f"Give it a batch size that divides {global_batch // ranks or 1}.",
            )
        self.loader, self.data, self.samples = loader, loader.dataset, 0
        self.global_batch, self.micro_batch = global_batch, size
        self.rank, self.ranks, self.shares = rank, ranks, ()
        self.shuffle, self.passes = False, global_batch // (size * ranks)
        self._group = group
        self._epoch = self._taken = self._total = 0
        self._ended = False
        self._iterator: Iterator[Any] | None = None
        self._step: list[tuple[Any, int]] = []
        self._spare: Any = None

    @property
    def steps_per_epoch(self) -> int:
        """Not known before the data has ended. Raises InputFault."""
        raise unknown_length()

    @property
    def largest_micro_batch(self) -> int:
        """1: a batch of the loader is not divided when memory is short."""
        return 1

    def begin_step(self, step: int) -> int:
        """Fetch the batches of the step; returns the samples of all ranks in it. Raises InputFault without any."""
        for _ in range(2):
            self._fetch()
            passes, samples, ended = self._agree()
            if samples:
                break
            # The data ended with the step before.
            self._begin_epoch()
        else:
            raise InputFault("the data", "gives no batches", "Give at least one for each rank.")
        while len(self._step) < passes:
            if self._spare is None:
                raise InputFault(
                    f"the data of rank {self.rank}", "gives no batch", "Give each rank a part of the data."
                )
            self._step.append((self._spare, 0))
        self._total += samples
        if ended:
            self._begin_epoch()
        return samples

    def iter_micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """This rank's batches of the step that has begun."""
        batches, self._step = self._step, []
        for number, (batch, samples) in enumerate(batches, start=1):
            yield MicroBatch(batch, samples, number == len(batches))

    def position(self, step: int) -> DataPosition:
        """Completed epochs, and the samples of all ranks since."""
        return DataPosition(self._epoch, self._total)

    def state(self) -> dict[str, str]:
        """This rank's place in the data, by the name under which a checkpoint keeps it."""
        state_dict = getattr(self.loader, "state_dict", None)
        with foreign_code("the loader's state"):
            state = {
                **self._identity(),
                "epoch": self._epoch, "taken": self._taken, "total": self._total, "ended": self._ended,
                "state": state_dict() if state_dict else None,
            }  # fmt: skip
        return {f"{LOADER}.{self.rank}": pack(state)}

    def load(self, run_state: Mapping[str, str], step: int) -> None:
        """Go on where the checkpoint was. Raises InputFault for the state of another loader, and for other ranks."""
        where = "the loader's state"
        ranks = sum(name.startswith(f"{LOADER}.") for name in run_state)
        if ranks != self.ranks:
            had = "is missing in the checkpoint" if not ranks else f"is of {ranks} data ranks"
            raise InputFault(
                where,
                f"{had}, but the run has {self.ranks} now, each with its own part of the data",
                "Go on with as many processes as the checkpoint was written with.",
            )
        state = unpack(run_state[f"{LOADER}.{self.rank}"], where)
        for name, value in self._identity().items():
            if (before := state.get(name)) != value:
                raise InputFault(
                    where,
                    f"is of another data set: its {name} was {quoted(before)} and is {quoted(value)}",
                    "Go on with the data that the run began with, or start another run.",
                )
        self._epoch, self._taken, self._total, self._ended = (
            state[name] for name in ("epoch", "taken", "total", "ended")
        )
        with preserved_random_state():
            self._restore(state["state"])

    def _restore(self, state: Any) -> None:
        """Bring the loader to its place: by its own state, or by reading again what was taken."""
        if state is not None:
            try:
                self._restore_state(state)
            except Exception as error:
                raise InputFault(
                    "the loader's state",
                    f"is of another data set: loading it raised {type(error).__name__}: {error}",
                    "Go on with the data that the run began with, or start another run.",
                ) from error
            return
        if self._ended:
            self._spare = next(iter(self.loader), None)
        if self._ended or not self._taken:
            return
        self._set_epoch()
        self._iterator = iter(self.loader)
        with foreign_code("the data"):
            for _ in range(self._taken):
                if next(self._iterator, None) is None:
                    raise InputFault(
                        "the data",
                        f"ends before the {self._taken} batches that were taken",
                        "Start another run.",
                    )

    def _restore_state(self, state: Any) -> None:
        loader: Any = self.loader
        loader.load_state_dict(state)
        if self._ended:
            # What this rank runs without counting it, while others still have data.
            self._spare = next(iter(loader), None)
            loader.load_state_dict(state)
        elif self._taken:
            # The loader takes the state over only now.
            self._iterator = iter(loader)

    def _identity(self) -> dict[str, Any]:
        """What a state must agree with."""
        return {
            "class": type(self.data).__qualname__,
            "fingerprint": str(getattr(self.data, "fingerprint", "")),
            "batch size": self.micro_batch,
            "number of workers": self.loader.num_workers,
        }

    def _fetch(self) -> None:
        """Take the batches of a step, or what is left."""
        with data_faults():
            while len(self._step) < self.passes and not self._ended:
                if self._iterator is None:
                    self._set_epoch()
                    self._iterator = iter(self.loader)
                try:
                    batch = next(self._iterator)
                except StopIteration:
                    self._ended = True
                    return
                self._taken += 1
                self._spare = batch
                self._step.append((batch, _samples_of(batch)))

    def _agree(self) -> tuple[int, int, bool]:
        """Of all ranks: the most passes, the samples, and whether the data of each has ended."""
        mine = torch.tensor([len(self._step), sum(count for _, count in self._step), self._ended])
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(gathered, mine, group=self._group)
        every = torch.stack(gathered)
        # Ranks that hold parts of one copy have the same samples.
        copies = len(gathered) // self.ranks
        return int(every[:, 0].max()), int(every[:, 1].sum()) // copies, bool(every[:, 2].all())

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._taken = self._total = 0
        self._ended, self._iterator = False, None

    def _set_epoch(self) -> None:
        """Tell the data its epoch, if it asks for that."""
        if hasattr(self.data, "set_epoch"):
            self.data.set_epoch(self._epoch)


def _samples_of(batch: Any) -> int:
    """Samples of a batch: the size of its first tensor. Raises InputFault if it has none."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return len(leaf)
    raise InputFault("the data", "gives a batch without a tensor", "Give batches of tensors.")
