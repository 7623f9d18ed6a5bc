"""A run on the nodes of a Ray cluster: a task a node, whose agents meet as those of several machines do.

Ray says where the nodes are and starts a lost one's task on another; what a run survives, and what it writes, is the
run's own. Ray's TorchTrainer would start its workers anew, all of them, for every lost rank, and knows neither marks
of ranks that hang nor a global batch that stays.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchsplit_core.model_source import parse_source
from torchsplit_core.running.fleet.cluster import nodes_with, ray_cluster, resource_words
from torchsplit_core.running.fleet.node import ENDS_S, NodeEnd, NodeTask, run_node
from torchsplit_core.running.fleet.size import Fleet
from torchsplit_core.running.folder import RunFolder
from torchsplit_core.running.launch import followed
from torchsplit_core.running.watch.exports import exported
from torchsplit_core.values import InputFault, Progress, ignore_progress
from torchsplit_core.values.strategy.run import Exports, RunOptions, RunStrategy, RunSummary

PLACED_S = 30.0
"""In which nodes that other work holds are waited for, before the run begins with fewer or not at all."""
RETRIES = 3
"""Of a node whose agent was killed."""
LOOK_S = 1.0
LATER_S = 10.0
"""All nodes end together; those whose machines are lost are waited for so long."""


def train_on_ray(
    source: str,
    strategy: RunStrategy,
    fleet: Fleet,
    folder: str | Path,
    *,
    options: RunOptions | None = None,
    resume: bool = False,
    trust: bool = False,
    exports: Exports | None = None,
    progress: Progress = ignore_progress,
) -> RunSummary:
    """Train as `train` does, on nodes of the Ray cluster that RAY_ADDRESS names or that runs here.

    All nodes see the folder by the same path and have this program. Raises InputFault as `train` does, where Ray is
    not installed or no cluster answers, and where the cluster has not as many nodes as the run needs.
    """
    options = options or RunOptions()
    parsed, run = parse_source(source, trust=trust), RunFolder(folder, "ray")
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_cluster())
        count = nodes_that_fit(ray.nodes(), fleet)
        with run.claimed(resume=resume):
            # The nodes share it from here on.
            shown = run.logs / f"fleet-{uuid.uuid4().hex[:12]}"
            shown.touch()
        stack.callback(shown.unlink, missing_ok=True)
        group, count = stack.enter_context(_placed(fleet, count))
        fleet = replace(fleet, most=count)
        meeting = stack.enter_context(_meeting(ray))
        stack.enter_context(followed(run, options.steps, progress))
        stack.enter_context(exported(run.path, exports or Exports()))
        stack.enter_context(_stopped_by_signals())
        task = NodeTask(parsed.text, trust, strategy, options, str(run.path), fleet, meeting, str(shown))
        restarts = _Nodes(ray, group, task).until_done()
    last = run.last_step()
    return RunSummary(last["step"] if last else 0, last["loss"] if last else None, restarts)


def nodes_that_fit(nodes: Sequence[Mapping[str, Any]], fleet: Fleet) -> int:
    """How many nodes of the cluster (`ray.nodes()`) the run can have at once.

    Raises InputFault where they are too few, whatever else they do: such a placement group would wait for ever.
    """
    return min(nodes_with(nodes, _bundle(fleet), fleet.least), fleet.most)


def _bundle(fleet: Fleet) -> dict[str, int]:
    """What a node's part of the run takes, by Ray's names."""
    needed = {"CPU": fleet.processes * fleet.cores}
    return needed if fleet.gpu is None else {**needed, "GPU": fleet.processes}


@contextlib.contextmanager
def _placed(fleet: Fleet, count: int) -> Iterator[tuple[Any, int]]:
    """A place on a node of its own for each node of the run; of fewer, not below the least, where more are not free."""
    from ray.util.placement_group import placement_group, remove_placement_group

    for number in range(count, fleet.least - 1, -1):
        group = placement_group([_bundle(fleet)] * number, strategy="STRICT_SPREAD")
        try:
            if group.wait(PLACED_S):
                yield group, number
                return
        finally:
            remove_placement_group(group)
    raise InputFault(
        "the Ray cluster",
        f"had no {fleet.least} nodes with {resource_words(_bundle(fleet))} free within {PLACED_S:g} s",
        "Wait for the work that holds them (`ray status` names it), or ask for less.",
    )


@contextlib.contextmanager
def _meeting(ray: Any) -> Iterator[str]:
    """Where the nodes meet: a store that this process serves, so that no node's loss takes it along."""
    import torch.distributed as dist

    host = ray.util.get_node_ip_address()
    store = dist.TCPStore(host, 0, is_master=True, multi_tenant=True, wait_for_workers=False)
    yield f"[{host}]:{store.port}" if ":" in host else f"{host}:{store.port}"


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """SIGTERM is what Ctrl-C is: the nodes are told to end before this process does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _Nodes:
    """The tasks of a run's nodes. One whose machine is lost is started by Ray as soon as there is another."""

    ray: Any
    group: Any
    task: NodeTask

    def __post_init__(self) -> None:
        self._places: dict[Any, int] = {}
        self._tries: Counter[int] = Counter()
        self._ends: list[RunSummary] = []

    def until_done(self) -> int:
        """Until the run has ended well; how often its ranks were started again. Raises InputFault where it has not."""
        try:
            for place in range(self.task.fleet.most):
                self._start(place)
            while not self._ends:
                self._look(LOOK_S)
            end = time.monotonic() + LATER_S
            while self._places and time.monotonic() < end:
                self._look(LOOK_S)
        finally:
            for one in self._places:
                self.ray.cancel(one)
            if self._places:
                self.ray.wait([*self._places], num_returns=len(self._places), timeout=ENDS_S)
        return max(one.restarts for one in self._ends)

    def _start(self, place: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needed = _bundle(self.task.fleet)
        there = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=place)
        remote = self.ray.remote(
            num_cpus=needed["CPU"], num_gpus=needed.get("GPU", 0), max_retries=-1, scheduling_strategy=there
        )(_in_worker)
        self._places[remote.remote(self.task, place)] = place

    def _look(self, wait_s: float) -> None:
        for done in self.ray.wait([*self._places], timeout=wait_s)[0]:
            place = self._places.pop(done)
            try:
                end: NodeEnd = self.ray.get(done)
            except self.ray.exceptions.RayError as error:
                end = NodeEnd(words=f"Ray lost one ({type(error).__name__})")
            if end.summary:
                self._ends.append(end.summary)
            elif self._ends:
                # The run is done without it.
                continue
            elif end.stopped:
                raise KeyboardInterrupt
            elif end.fault or self._tries[place] == RETRIES:
                self._without(end)
            else:
                self._tries[place] += 1
                self._start(place)

    def _without(self, end: NodeEnd) -> None:
        """Go on without a node. Raises InputFault where too few are left."""
        if len(self._places) < self.task.fleet.least:
            raise end.fault or InputFault(
                "",
                f"too few nodes are left: {end.words}",
                "Give --resume to go on from the last complete checkpoint.",
            )


def _in_worker(task: NodeTask, place: int) -> NodeEnd:
    import ray

    return run_node(task, place, ray.get_runtime_context().get_node_id())
