"""A run for Slurm: a batch script that starts the same command on each node, and requeues itself."""

from __future__ import annotations

import shlex

from torchsplit_core.deployment.files import DeploymentFile
from torchsplit_core.training.cluster.job_spec import FleetJob

NOTICE_S = 180
"""Seconds before its time limit at which a job is notified; it takes a checkpoint, ends and requeues itself."""
FIRST_PORT, PORTS = 20000, 10000
"""Ports at which the nodes meet, by the job's number: below the ports that Linux assigns itself (32768 on)."""

_SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cores}
{gpus}#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --signal=B:USR1@{notice}
#SBATCH --requeue
#SBATCH --open-mode=append
{kept}# The run {name} on {words}. Untested on hardware.
#
#   sbatch --time=4:00:00 train.sbatch
#
# in this folder, which all nodes see by the same path and whose file system has locks for all of them, and from a shell
# where torchsplit runs. Options of sbatch count before those above. The run is in run/ beside, or TORCHSPLIT_RUN.
# {notice} s before its time is up the job takes a checkpoint, ends and queues itself again; Slurm queues it again when
# a node is lost{elastic}. It goes on from the newest checkpoint; a job that made none is not queued again.
set -uo pipefail

here=${{SLURM_SUBMIT_DIR:-$PWD}}
run=${{TORCHSPLIT_RUN:-$here/run}}
least={least}
mapfile -t hosts < <(scontrol show hostnames "${{SLURM_JOB_NODELIST:?this is started by sbatch}}")
port=$(({first_port} + SLURM_JOB_ID % {ports}))

newest() {{ cat "$run/checkpoints/LATEST" 2> /dev/null || true; }}
before=$(newest)

steps=() notice= stopped=
end() {{ kill -TERM "${{steps[@]}}" 2> /dev/null || true; }}
leave() {{
  notice=1
  local last
  last=$(newest)
  touch "$run/watch/checkpoint" 2> /dev/null || true
  for ((i = 0; i < {patience}; i++)); do
    [[ $(newest) == "$last" ]] || break
    sleep 1
  done
}}
trap leave USR1
trap 'stopped=1' TERM INT

for host in "${{hosts[@]}}"; do
  srun --nodes=1 --ntasks=1 --nodelist="$host" --cpus-per-task={cores}{no_kill} \\
    torchsplit train {source} --strategy "$here/strategy.json" -o "$run" --resume --nnodes "$least:${{#hosts[@]}}" \\
    --rendezvous "${{hosts[0]}}:$port" --node "$host" --processes {processes}{options} &
  steps+=("$!")
done

# All nodes end well together. One that ends otherwise is gone on without while there are enough.
left=${{#hosts[@]}} status=1
while ((left >= least)); do
  wait -n && {{ status=0; break; }}
  status=$?
  [[ -z $notice$stopped ]] || break
  left=$((left - 1))
  echo "A node has ended with $status; $left are left." >&2
done
((status == 0)) || end
wait || true

# 130: the run was asked to stop.
if ((status != 0 && status != 130)) && [[ -z $stopped && $(newest) != "$before" ]]; then
  echo "Queued again, to go on from $(newest)." >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def slurm_files(job: FleetJob) -> tuple[DeploymentFile, ...]:
    """`train.sbatch`, and the strategy in `strategy.json`."""
    elastic = job.fleet.least < job.fleet.most
    script = _SCRIPT.format(
        name=job.name,
        nodes=f"{job.fleet.least}-{job.fleet.most}" if elastic else str(job.fleet.most),
        cores=job.fleet.processes * job.fleet.cores,
        gpus=""
        if job.fleet.gpu is None
        else f"#SBATCH --gres=gpu:{f'{job.fleet.gpu}:' * bool(job.fleet.gpu)}{job.fleet.processes}\n",
        notice=NOTICE_S,
        kept="#SBATCH --no-kill\n" if elastic else "",
        words=job.fleet.description,
        elastic=f" and fewer than {job.fleet.least} are left" if elastic else "",
        least=job.fleet.least,
        first_port=FIRST_PORT,
        ports=PORTS,
        patience=NOTICE_S - 60,
        no_kill=" --no-kill" if elastic else "",
        source=shlex.quote(job.source.text),
        processes=job.fleet.processes,
        options="".join(f" {shlex.quote(option)}" for option in job.options),
    )
    return (
        DeploymentFile("train.sbatch", script, executable=True),
        DeploymentFile("strategy.json", job.strategy),
    )
