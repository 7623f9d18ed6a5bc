"""Save the state of a run while it trains, and load it into any number of processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from torchsplit_core.checkpoints.safe_load import SafePlanner, SafeReader
from torchsplit_core.checkpoints.store import Checkpoints, Manifest
from torchsplit_core.training.pipeline.parameter_names import name_in_model
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault, last_cause, quoted, system_reason

EXCHANGE = "exchange"
"""Entry of a checkpoint with the errors of a compressed exchange, by ranks and weight."""
RUN_STATE = "run"
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def model_digest(model: nn.Module) -> str:
    """SHA-256 of names, shapes and types of a model's weights and buffers; identifies the model of a checkpoint."""
    lines = sorted(
        f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in model.state_dict().items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class AsyncCheckpointer:
    """Writes checkpoints in a thread, one at a time; rank 0 publishes and logs them."""

    def __init__(self, folder: RunFolder, checkpoints: Checkpoints, group: dist.ProcessGroup | None) -> None:
        self.folder, self.checkpoints, self.group = folder, checkpoints, group
        self.rank = dist.get_rank()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._job: Future[str | None] | None = None
        self.newest: int | None = None
        """The step of the newest checkpoint that was started."""
        self.last_duration_s = 0.0
        """Seconds that the last checkpoint took; 0 before the first."""

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        manifest: Manifest,
        run_state: Mapping[str, str],
        exchange: Mapping[str, torch.Tensor],
    ) -> None:
        """Copy the state and write it while the run goes on; first waits for the previous checkpoint.

        `run_state`: what else the run goes on from, as text by name. `exchange`: what this rank has not sent yet of
        each weight's gradient.
        """
        self.wait()
        began = time.perf_counter()
        partial = self.checkpoints.partial_folder(manifest.step)
        written = dcp.async_save(
            state_of(model, optimizer)
            | {"random": {str(self.rank): _random_state()}, RUN_STATE: dict(run_state)}
            | ({EXCHANGE: {_place(): dict(exchange)}} if exchange else {}),
            checkpoint_id=partial,
            process_group=self.group,
        )
        self.newest = manifest.step
        self._job = self._thread.submit(self._complete, written, manifest, began)

    def wait(self) -> str | None:
        """Wait for the last checkpoint; why it was not written, on the rank that failed, None if it was."""
        if self._job is None:
            return None
        reason = self._job.result()
        self._job = None
        return reason

    def close(self) -> str | None:
        """Wait for the last checkpoint; returns the first rank's reason why it was not written, on every rank."""
        reason = self.broadcast_reason(self.wait())
        self._thread.shutdown()
        return reason

    def broadcast_reason(self, reason: str | None) -> str | None:
        """The first rank's `reason`, on every rank."""
        reasons = [reason]
        dist.broadcast_object_list(reasons, src=0, group=self.group)
        return reasons[0]

    def _complete(self, written: Any, manifest: Manifest, began: float) -> str | None:
        """Once the ranks have written, rank 0 publishes the checkpoint under its name."""
        where = f"checkpoint of step {manifest.step}"
        try:
            written.result()
            if self.rank == 0:
                self.folder.sync_steps()
                path = self.checkpoints.publish(manifest)
                size = sum(file.stat().st_size for file in path.iterdir())
                self.folder.log_event("checkpoint", f"{where} is complete: {size} bytes", 0)
            self.last_duration_s = time.perf_counter() - began
        except (Exception, CheckpointException) as error:  # noqa: BLE001 - the run itself goes on
            reason = _reason(error)
            if self.rank == 0:
                self.checkpoints.discard_partial(manifest.step)
                self.folder.log_event("checkpoint_failed", f"{where} was not written: {reason}", 0)
            return reason
        return None


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights and optimizer states by the weights' names in the whole model, however they are divided."""
    states = {
        "model": get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=FLAT),
    }
    return {
        what: {name_in_model(name): entry for name, entry in state.items()} for what, state in states.items()
    }


def _local_entries(names: Iterable[str], state: dict[str, Any]) -> dict[str, Any]:
    """The entries of `state` under this process's names."""
    return {name: state[name_in_model(name)] for name in names}


def load_checkpoint(
    path: Path, manifest: Manifest, model: nn.Module, optimizer: torch.optim.Optimizer, random_rank: int
) -> dict[str, str]:
    """Load a checkpoint into this process's part of the model and the optimizer; returns the `run_state` of its save.

    The random state is restored if the run has as many ranks as the checkpoint, otherwise seeded by the run's seed and
    the step. `random_rank`: the rank whose random state this one uses; ranks that compute the same share it. Raises
    InputFault, before the model has changed, if the checkpoint does not fit or holds more than weights and plain
    values.
    """
    state = state_of(model, optimizer)
    same = manifest.world_size == dist.get_world_size()
    if same:
        state["random"] = {str(random_rank): _random_state()}
    reader = SafeReader(path)
    entries = [
        name for name in reader.read_metadata().state_dict_metadata if name.startswith(f"{RUN_STATE}.")
    ]
    # A checkpoint of an earlier version has none.
    state |= {RUN_STATE: {name.removeprefix(f"{RUN_STATE}."): "" for name in entries}} if entries else {}
    try:
        dcp.load(state, storage_reader=reader, planner=SafePlanner())
    except CheckpointException as error:
        for failure, _ in error.failures.values():
            if isinstance(failure, InputFault):
                raise failure from error
        raise InputFault(
            f"checkpoint {path.name}",
            f"does not fit the model and the optimizer: {_reason(error)}",
            "Go on with the optimizer that it was written with.",
        ) from error
    set_model_state_dict(model, _local_entries(get_model_state_dict(model), state["model"]))
    optimizer_state = get_optimizer_state_dict(model, optimizer, options=FLAT)
    set_optimizer_state_dict(
        model, optimizer, _local_entries(optimizer_state, state["optimizer"]), options=FLAT
    )
    if same:
        try:
            _set_random_state(state["random"][str(random_rank)])
        except (ValueError, TypeError) as error:
            raise InputFault(
                f"checkpoint {path.name}",
                f"holds random numbers that are none: {_reason(error)}",
                "Remove this checkpoint: the run goes on from an earlier one, if it has one.",
            ) from error
    else:
        seed_all(manifest.seed + manifest.step, random_rank)
    return dict(state.get(RUN_STATE, {}))


def _place() -> str:
    """This rank among so many: another number of ranks has other errors."""
    return f"{dist.get_rank()} of {dist.get_world_size()}"


def load_exchange(path: Path, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
    """This rank's errors of a compressed exchange, as `like` in name and shape; None if the checkpoint lacks any."""
    reader = SafeReader(path)
    stored = reader.read_metadata().state_dict_metadata
    prefix = f"{EXCHANGE}.{_place()}."
    shapes = {name: getattr(stored.get(prefix + name), "size", None) for name in like}
    if any(shapes[name] != tensor.shape for name, tensor in like.items()):
        return None
    errors = {name: torch.zeros_like(tensor) for name, tensor in like.items()}
    dcp.load({EXCHANGE: {_place(): errors}}, storage_reader=reader, planner=SafePlanner(), no_dist=True)
    return errors


def check_model(path: Path, manifest: Manifest, name: str, digest: str) -> None:
    """Raises InputFault if the checkpoint is of another model."""
    if manifest.model_sha256 != digest:
        raise InputFault(
            f"checkpoint {path.name}",
            f"is of {quoted(manifest.model)}, whose weights differ in name, shape or type from those of {name}",
            "Train that model, or start another run.",
        )


def seed_all(seed: int, rank: int) -> None:
    """Seed all generators: differently for each rank, equally in every run."""
    torch.manual_seed(seed * 1_000_003 + rank)
    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % 2**32)


def _random_state() -> dict[str, Any]:
    """The state of each generator; Python's and numpy's as text, since their sizes vary."""
    kind, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "others": json.dumps([random.getstate(), [kind, [int(key) for key in keys], *rest]]),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


@contextlib.contextmanager
def preserved_random_state() -> Iterator[None]:
    """Afterwards all generators are as they were before."""
    state = _random_state()
    try:
        yield
    finally:
        _set_random_state(state)


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    (version, numbers, normal), (kind, keys, *rest) = json.loads(state["others"])
    random.setstate((version, tuple(numbers), normal))
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _reason(error: BaseException) -> str:
    """The last cause as text; DCP's exception holds the errors of all ranks."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, (inner, *_) = next(iter(failures.items()))
        return f"rank {rank}: {_reason(inner)}"
    error = last_cause(error)
    if isinstance(error, OSError):
        return system_reason(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
