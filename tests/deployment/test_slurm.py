"""Slurm's files by their grammar, and the job by running it with stand-ins for srun."""

import os
import re
import signal
import subprocess
import time
from collections import Counter

from tests.support.deployment.asked import asked
from tests.support.deployment.helpers import plan_of, planned_gpu, tenant
from torchsplit_core.deployment import write_deployment

OPTIONS = {"job-name", "nodes", "ntasks", "exclusive", "mem", "nodelist", "gres", "signal", "requeue"}
"""Of sbatch, that the job uses."""
GRES = {"NodeName", "AutoDetect"}
"""Keys of gres.conf that are used."""


def test_nodes_offer_what_is_cut_and_jobs_ask_for_what_is_used(mixed_plan):
    texts = asked(mixed_plan).texts("slurm")
    lines = [line for line in texts["slurm/gres.conf"].splitlines() if not line.startswith("#")]
    for line in lines:
        assert {pair.partition("=")[0] for pair in line.split()} <= GRES
    assert lines == ["NodeName=node0 AutoDetect=nvml", "NodeName=node1 AutoDetect=nvml"]
    offered = dict(re.findall(r"(?m)^NodeName=(\S+) Gres=(\S+)$", texts["slurm/nodes.conf"]))
    assert offered == {"node0": "gpu:1g.10gb:4,gpu:2g.20gb:2,gpu:3g.40gb:2", "node1": "gpu:7g.80gb:1"}
    job = texts["slurm/node0/serve.sbatch"]
    options = dict(
        line.removeprefix("#SBATCH --").partition("=")[::2]
        for line in job.splitlines()
        if line.startswith("#SBATCH")
    )
    assert set(options) == OPTIONS
    assert options["nodelist"] == "node0"
    assert options["gres"] == "gpu:1g.10gb:2,gpu:2g.20gb:2,gpu:3g.40gb:2"
    assert options["ntasks"] == "6"
    steps = Counter(re.findall(r"(?m)^server .*--gres=gpu:(\S+):1", job))
    assert steps == {"1g.10gb": 2, "2g.20gb": 2, "3g.40gb": 2}


def test_cores_are_bound_and_whole_gpus_are_called_by_their_type():
    cores = ("2c", 2, tenant("c"))
    plan = plan_of(
        planned_gpu("cpu0", "CPU-4c", [cores]), planned_gpu("gpu0", "L4-24GB", [("", 0, tenant("a"))])
    )
    texts = asked(plan).texts("slurm")
    assert "--gres=none --cpus-per-task=2 --cpu-bind=cores" in texts["slurm/serve.sbatch"]
    assert "# NodeName=… Gres=gpu:l4:1" in texts["slurm/nodes.conf"]
    alone = asked(plan_of(planned_gpu("cpu0", "CPU-4c", [cores]))).texts("slurm")
    assert "slurm/gres.conf" not in alone


def test_the_job_starts_every_server_and_drains_them(tmp_path):
    plan = plan_of(planned_gpu("gpu0", "A100-80GB", [("1g.10gb", 0, "a"), ("1g.10gb", 1, "b")]))
    write_deployment(asked(plan).files("slurm").values(), tmp_path)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    log = tmp_path / "log"
    # A step that ends only when it is told to.
    (bin_ / "srun").write_text(
        f'#!/bin/bash\necho "$@" >> {log}\ntrap "echo drained >> {log}; exit 0" TERM\n'
        "while true; do sleep 0.1; done\n"
    )
    (bin_ / "srun").chmod(0o755)
    job = subprocess.Popen(
        ["bash", "serve.sbatch"],
        cwd=tmp_path / "slurm",
        env={
            **os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "TORCHSPLIT_ROOT": str(tmp_path / "image"),
        },
        start_new_session=True,
    )  # fmt: skip
    try:
        for _ in range(1200):
            if log.exists() and len(log.read_text().splitlines()) == 3:
                break
            time.sleep(0.1)
        started = log.read_text().splitlines()
        assert len(started) == 3
        assert sum("TORCHSPLIT_SERVER=" in line and "--gres=gpu:1g.10gb:1" in line for line in started) == 2
        assert sum("TORCHSPLIT_ROUTES=" in line and "--gres=none" in line for line in started) == 1
        # With cores of its own it would wait for ever where the slices are all of the node's.
        assert ["--overlap" in line for line in started if "TORCHSPLIT_ROUTES=" in line] == [True]
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=60)
        assert log.read_text().count("drained") == 3
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
