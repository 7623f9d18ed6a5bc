"""A node of a run on a Ray cluster: a Ray task that starts the agent as a separate process.

Ray's worker has threads and a main module of its own, which processes forked from its children would load again, and
sets torch's number of threads; so the agent is started as the command line starts it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.bundle import python_path
from torchsplit_core.isolation.sandbox.kernel import set_parent_death_signal
from torchsplit_core.training.cluster.resources import Fleet
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.run import ElasticNodes, RunOptions, RunStrategy, RunSummary

AGENT_END_S = 30.0
"""Seconds within which an agent that was terminated has ended its ranks."""


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The task of a node. `rendezvous`: HOST:PORT of the run's store; `probe_file`: visible to all who share the
    folder."""

    source: str
    trust: bool
    strategy: RunStrategy
    options: RunOptions
    folder: str
    fleet: Fleet
    rendezvous: str
    probe_file: str


@dataclass(frozen=True, slots=True)
class NodeResult:
    """How a node ended: with a summary, with a fault, stopped, or (none of these) with a message."""

    summary: RunSummary | None = None
    fault: InputFault | None = None
    stopped: bool = False
    message: str = ""


def run_node(task: NodeTask, index: int, machine: str) -> NodeResult:
    """Train as a node of the run in a Ray worker, until the run ends. `index`: the node's number in the run."""
    if not Path(task.probe_file).exists():
        return NodeResult(
            fault=InputFault(
                "-o",
                f"is {quoted(task.folder)}, which node {machine} does not see",
                "Name a folder that all nodes share by the same path.",
            )
        )
    # A node that replaces a lost one has another name: the lost one may still run, cut off.
    name = f"node-{index}-{machine[:8]}"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(task.fleet.cores),
        "PYTHONPATH": python_path(),
    }
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(folder) / "end"
        command = [sys.executable, "-c", f"from {__name__} import main; main()", str(result_file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as agent:
            try:
                assert agent.stdin
                agent.stdin.write(pickle.dumps((task, name)))
                agent.stdin.close()
                agent.wait()
            except KeyboardInterrupt:
                agent.terminate()
                try:
                    agent.wait(AGENT_END_S)
                except subprocess.TimeoutExpired:
                    agent.kill()
                return NodeResult(stopped=True)
        if not result_file.exists():
            return NodeResult(message=f"the agent of {name} ended with {agent.returncode}")
        result: NodeResult = pickle.loads(result_file.read_bytes())
        return result


def main() -> None:
    """The agent: reads its task from standard input, and writes how it ended to the file that its argument names."""
    set_parent_death_signal()
    # Imported here: a process that only passes on tasks needs no torch.
    from torchsplit_core.training.launch import train

    task: NodeTask
    task, name = pickle.load(sys.stdin.buffer)
    fleet = task.fleet
    try:
        summary = train(
            task.source,
            task.strategy,
            task.folder,
            options=task.options,
            processes=fleet.processes,
            nodes=ElasticNodes(fleet.least, fleet.most, task.rendezvous, name),
            resume=True,
            trust=task.trust,
        )
        result = NodeResult(summary=summary)
    except InputFault as fault:
        result = NodeResult(fault=fault)
    except KeyboardInterrupt:
        result = NodeResult(stopped=True)
    Path(sys.argv[1]).write_bytes(pickle.dumps(result))
