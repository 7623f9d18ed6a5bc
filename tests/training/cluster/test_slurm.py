"""The batch script by the options that Slurm documents, and by running it with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.training.fleets import job, request, texts
from torchsplit_core.deployment import write_deployment
from torchsplit_core.files import read_text
from torchsplit_core.training.cluster.job_files import fleet_files
from torchsplit_core.values.strategy.run import RunOptions
from torchsplit_core.values.strategy.updates import UpdateOptions

OPTIONS = {
    "job-name": r"[a-z0-9-]+",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "cpus-per-task": r"\d+",
    "gres": r"gpu:([a-z0-9]+:)?\d+",
    "mem": "0",
    "exclusive": "",
    "signal": r"B:(USR1|TERM)@\d+",
    "requeue": "",
    "open-mode": "append|truncate",
    "no-kill": "",
}
"""Of sbatch, that are used, and what may stand behind each (slurm.schedmd.com/sbatch.html)."""
STEP = {"nodes", "ntasks", "nodelist", "cpus-per-task", "no-kill"}
"""Of srun."""


def options(script: str) -> dict[str, str]:
    """What a script asks of sbatch, each checked."""
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert script.splitlines()[1 : 1 + len(lines)] == lines, "sbatch reads options up to the first command"
    found = dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines)
    assert len(found) == len(lines)
    for name, value in found.items():
        assert re.fullmatch(OPTIONS[name], value), name
    step = re.search(r"(?m)^ +srun (.*?) \\\n", script)
    assert step and {one.partition("=")[0].lstrip("-") for one in step.group(1).split()} <= STEP
    return found


def test_each_node_has_the_strategys_gpus_and_the_same_command() -> None:
    update = UpdateOptions(1.5, "cosine", warmup_steps=4)
    made = texts(job(options=RunOptions(steps=40, shares=(1.0,) * 8, update=update)), "slurm")
    assert read_text(made["strategy.json"])[1] == request()
    found = options(made["train.sbatch"])
    assert (found["job-name"], found["nodes"], found["gres"]) == ("llama-run", "2", "gpu:a100:4")
    assert found["cpus-per-task"] == "16" and "requeue" in found and "no-kill" not in found
    assert (
        "--processes 4 --steps=40 --shares=1,1,1,1,1,1,1,1 --clip-norm=1.5 --schedule=cosine --warmup-steps=4 &"
        in made["train.sbatch"]
    )


def test_fewer_nodes_are_gone_on_with_where_that_is_asked_and_cores_need_no_gpu() -> None:
    given = request(nodes=3, per_node=2, kind="CPU-3c")
    found = options(texts(job(given=given, nodes=(1, 3)), "slurm")["train.sbatch"])
    assert found["nodes"] == "1-3" and "no-kill" in found
    assert found["cpus-per-task"] == "6" and "gres" not in found
    assert options(texts(job(cores=2), "slurm")["train.sbatch"])["cpus-per-task"] == "8"


def test_the_check_of_the_options_notices() -> None:
    script = texts(job(), "slurm")["train.sbatch"]
    for bad in ("#SBATCH --signals=B:USR1@180", "#SBATCH --signal=USR1@soon", "#SBATCH --requeue=yes"):
        with pytest.raises((AssertionError, KeyError)):
            options(script.replace("#SBATCH --requeue", bad))
    with pytest.raises(AssertionError):
        options(script.replace("set -uo", "#SBATCH --hold\nset -uo"))


class Cluster:
    """Slurm's commands as far as the script needs them: steps that do what a file says, requeues that are told."""

    def __init__(self, folder: Path, nodes: tuple[int, int] = (2, 2), step: str = "exit 0") -> None:
        self.folder, self.log = folder, folder / "log"
        write_deployment(fleet_files(job(nodes=nodes, processes=1), "slurm"), folder)
        (folder / "bin").mkdir()
        (folder / "run" / "checkpoints").mkdir(parents=True)
        (folder / "run" / "watch").mkdir()
        self._command(
            "scontrol", f'if [[ $1 == show ]]; then echo n1; echo n2; else echo "$@" >> {self.log}; fi'
        )
        self._command("srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
        checkpoint = f'echo "$1" > {folder}/run/checkpoints/LATEST'
        self._command(
            "torchsplit",
            f'checkpoint() {{ {checkpoint}; }}\nall=$*; node=${{all##*--node }}; node=${{node%% *}}\n'
            f'echo "$node: $all" >> {self.log}\ntrap "echo $node ended >> {self.log}; exit 130" TERM\n{step}',
        )  # fmt: skip

    def _command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def start(self) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "41234", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_SUBMIT_DIR": str(self.folder),
        }  # fmt: skip
        return subprocess.Popen(["bash", "train.sbatch"], cwd=self.folder, env=environment)

    def ends_with(self) -> int:
        return self.start().wait(timeout=60)

    @property
    def said(self) -> list[str]:
        return self.log.read_text().splitlines()


def test_the_nodes_meet_at_the_first_and_the_job_ends_with_the_run(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    assert cluster.ends_with() == 0
    first, second = sorted(cluster.said)
    run = tmp_path / "run"
    assert first == (
        f"n1: train sample:llama --strategy {tmp_path}/strategy.json -o {run} --resume --nnodes 2:2 "
        "--rendezvous n1:21234 --node n1 --processes 1"
    )
    assert second == first.replace("n1: ", "n2: ").replace("--node n1", "--node n2")


def test_a_job_that_lost_a_node_is_queued_again_once_it_got_on(tmp_path: Path) -> None:
    wait = "until grep -q ^n2: {folder}/log; do sleep 0.05; done"
    lost = f"if [[ $node == n1 ]]; then {wait}; {{before}} exit 1; fi; while true; do sleep 0.05; done"
    cluster = Cluster(tmp_path / "a", step=lost.format(folder=tmp_path / "a", before="checkpoint step-4;"))
    assert cluster.ends_with() == 1
    assert cluster.said[-2:] == ["n2 ended", "requeue 41234"]
    stuck = Cluster(tmp_path / "b", step=lost.format(folder=tmp_path / "b", before=""))
    assert stuck.ends_with() == 1 and stuck.said[-1] == "n2 ended"


def test_with_fewer_nodes_allowed_the_others_go_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=(1, 2), step="[[ $node == n1 ]] && exit 1; sleep 0.3; exit 0")
    assert cluster.ends_with() == 0
    assert not any("requeue" in line or "ended" in line for line in cluster.said)
    assert "--nnodes 1:2" in cluster.said[0]


def test_before_its_time_is_up_it_takes_a_checkpoint_and_queues_itself_again(tmp_path: Path) -> None:
    asked = f"{tmp_path}/run/watch/checkpoint"
    cluster = Cluster(
        tmp_path, step=f"while true; do [[ -e {asked} ]] && checkpoint step-9; sleep 0.05; done"
    )
    started = cluster.start()
    try:
        _until_begun(cluster)
        started.send_signal(signal.SIGUSR1)
        assert started.wait(timeout=60) != 0
    finally:
        started.kill()
    assert sorted(cluster.said[-3:]) == ["n1 ended", "n2 ended", "requeue 41234"]


@pytest.mark.parametrize("how", ["scancel", "asked"])
def test_a_job_that_is_stopped_is_not_queued_again(how: str, tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path,
        step=f"checkpoint step-2; while [[ ! -e {tmp_path}/stop ]]; do sleep 0.05; done; exit 130",
    )
    started = cluster.start()
    try:
        _until_begun(cluster)
        if how == "asked":
            (tmp_path / "stop").touch()
        else:
            started.terminate()
        assert started.wait(timeout=60) != 0
    finally:
        started.kill()
    assert not any("requeue" in line for line in cluster.said)


def _until_begun(cluster: Cluster) -> None:
    end = time.monotonic() + 60
    while not (cluster.log.exists() and len(cluster.said) == 2):
        assert time.monotonic() < end
        time.sleep(0.02)
