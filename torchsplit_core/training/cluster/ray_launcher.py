"""A run on the nodes of a Ray cluster: one task per node, whose agents meet as those of several machines do.

Ray places the nodes and starts a lost node's task on another; the run itself sees to what it survives and what it
writes. Ray's TorchTrainer would restart all its workers for every lost rank, and knows neither heartbeats of hung ranks
nor a global batch that stays.
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
from torchsplit_core.training.cluster.ray_node import AGENT_END_S, NodeResult, NodeTask, run_node
from torchsplit_core.training.cluster.ray_tasks import count_matching_nodes, describe_resources, ray_cluster
from torchsplit_core.training.cluster.resources import Fleet
from torchsplit_core.training.launch import report_progress
from torchsplit_core.training.monitor.exporters import export_metrics
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault, Progress, ignore_progress
from torchsplit_core.values.strategy.run import Exports, RunOptions, RunStrategy, RunSummary

PLACEMENT_TIMEOUT_S = 30.0
"""Seconds to wait for nodes that other work holds, before the run begins with fewer or not at all."""
RETRIES = 3
"""Restarts of a node whose agent was killed."""
POLL_S = 1.0
STRAGGLER_WAIT_S = 10.0
"""Seconds to wait for nodes that have not ended with the others, since their machines are lost."""


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
    """Train as `train` does, on nodes of the Ray cluster that RAY_ADDRESS names or that runs on this machine.

    All nodes must see the folder by the same path and have this program. Raises InputFault as `train` does, if Ray is
    not installed or no cluster answers, and if the cluster has fewer nodes than the run needs.
    """
    options = options or RunOptions()
    parsed, run = parse_source(source, trust=trust), RunFolder(folder, "ray")
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(ray_cluster())
        count = count_usable_nodes(ray.nodes(), fleet)
        with run.exclusive(resume=resume):
            # From here on the nodes share the folder.
            probe_file = run.logs / f"fleet-{uuid.uuid4().hex[:12]}"
            probe_file.touch()
        stack.callback(probe_file.unlink, missing_ok=True)
        group, count = stack.enter_context(_reserve_nodes(fleet, count))
        fleet = replace(fleet, most=count)
        rendezvous = stack.enter_context(_serve_store(ray))
        stack.enter_context(report_progress(run, options.steps, progress))
        stack.enter_context(export_metrics(run.path, exports or Exports()))
        stack.enter_context(_interrupt_on_sigterm())
        task = NodeTask(
            parsed.text, trust, strategy, options, str(run.path), fleet, rendezvous, str(probe_file)
        )
        restarts = _NodeTasks(ray, group, task).supervise()
    last = run.last_step()
    return RunSummary(last["step"] if last else 0, last["loss"] if last else None, restarts)


def count_usable_nodes(nodes: Sequence[Mapping[str, Any]], fleet: Fleet) -> int:
    """How many nodes of the cluster (`ray.nodes()`) the run can have at once.

    Raises InputFault if there are too few, busy or not: their placement group would wait forever.
    """
    return min(count_matching_nodes(nodes, _bundle(fleet), fleet.least), fleet.most)


def _bundle(fleet: Fleet) -> dict[str, int]:
    """The resources of a node's part of the run, by Ray's names."""
    needed = {"CPU": fleet.processes * fleet.cores}
    return needed if fleet.gpu is None else {**needed, "GPU": fleet.processes}


@contextlib.contextmanager
def _reserve_nodes(fleet: Fleet, count: int) -> Iterator[tuple[Any, int]]:
    """A placement group with a separate node for each node of the run; for at least `least` if not all are free."""
    from ray.util.placement_group import placement_group, remove_placement_group

    for number in range(count, fleet.least - 1, -1):
        group = placement_group([_bundle(fleet)] * number, strategy="STRICT_SPREAD")
        try:
            if group.wait(PLACEMENT_TIMEOUT_S):
                yield group, number
                return
        finally:
            remove_placement_group(group)
    raise InputFault(
        "the Ray cluster",
        f"had no {fleet.least} nodes with {describe_resources(_bundle(fleet))} free within {PLACEMENT_TIMEOUT_S:g} s",
        "Wait for the work that holds them (`ray status` names it), or ask for less.",
    )


@contextlib.contextmanager
def _serve_store(ray: Any) -> Iterator[str]:
    """The address of the rendezvous store, which this process serves, so that it survives the loss of any node."""
    import torch.distributed as dist

    host = ray.util.get_node_ip_address()
    store = dist.TCPStore(host, 0, is_master=True, multi_tenant=True, wait_for_workers=False)
    yield f"[{host}]:{store.port}" if ":" in host else f"{host}:{store.port}"


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C: the nodes are told to end before this process does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _NodeTasks:
    """The tasks of a run's nodes. Ray restarts a task whose machine is lost as soon as there is another machine."""

    ray: Any
    group: Any
    task: NodeTask

    def __post_init__(self) -> None:
        self._index_of_task: dict[Any, int] = {}
        self._tries: Counter[int] = Counter()
        self._summaries: list[RunSummary] = []

    def supervise(self) -> int:
        """Run until the run has ended well; returns the restarts of its ranks. Raises InputFault if it fails."""
        try:
            for index in range(self.task.fleet.most):
                self._start(index)
            while not self._summaries:
                self._poll(POLL_S)
            end = time.monotonic() + STRAGGLER_WAIT_S
            while self._index_of_task and time.monotonic() < end:
                self._poll(POLL_S)
        finally:
            for task in self._index_of_task:
                self.ray.cancel(task)
            if self._index_of_task:
                self.ray.wait(
                    [*self._index_of_task], num_returns=len(self._index_of_task), timeout=AGENT_END_S
                )
        return max(summary.restarts for summary in self._summaries)

    def _start(self, index: int) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needed = _bundle(self.task.fleet)
        placement = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=index)
        remote = self.ray.remote(
            num_cpus=needed["CPU"],
            num_gpus=needed.get("GPU", 0),
            max_retries=-1,
            scheduling_strategy=placement,
        )(_in_worker)
        self._index_of_task[remote.remote(self.task, index)] = index

    def _poll(self, wait_s: float) -> None:
        for done in self.ray.wait([*self._index_of_task], timeout=wait_s)[0]:
            index = self._index_of_task.pop(done)
            try:
                result: NodeResult = self.ray.get(done)
            except self.ray.exceptions.RayError as error:
                result = NodeResult(message=f"Ray lost one ({type(error).__name__})")
            if result.summary:
                self._summaries.append(result.summary)
            elif self._summaries:
                # The run is done without it.
                continue
            elif result.stopped:
                raise KeyboardInterrupt
            elif result.fault or self._tries[index] == RETRIES:
                self._drop_node(result)
            else:
                self._tries[index] += 1
                self._start(index)

    def _drop_node(self, result: NodeResult) -> None:
        """Go on without a node. Raises InputFault if too few are left."""
        if len(self._index_of_task) < self.task.fleet.least:
            raise result.fault or InputFault(
                "",
                f"too few nodes are left: {result.message}",
                "Give --resume to go on from the last complete checkpoint.",
            )


def _in_worker(task: NodeTask, index: int) -> NodeResult:
    import ray

    return run_node(task, index, ray.get_runtime_context().get_node_id())
