"""Generates a week of a site that never was: jobs as `sacct` prints them, and hourly samples as DCGM has them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
DAYS = 7
HOLE = 3
"""The day of the week that the accounting lost."""
JOBS = {
    # name: (GRES, jobs an hour by day, by night, mean seconds)
    "bert": ("a100_1g.10gb", 3.0, 0.5, 900.0),
    "mobilenetv2": ("a100_1g.10gb", 2.0, 2.0, 300.0),
    "resnet50": ("a100_2g.20gb", 1.0, 0.2, 2400.0),
    "train-vit": ("a100_7g.80gb", 0.1, 0.3, 14000.0),
}
COLUMNS = "JobID|JobName|User|Account|Partition|Submit|Start|End|Elapsed|State|AllocTRES"


def _clock(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}"


def _elapsed(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def history() -> tuple[str, str]:
    """The texts of a table of sacct, and of one of DCGM's samples."""
    rng = random.Random(38)
    submitted = sorted(
        (BEGIN + timedelta(hours=hour, seconds=rng.randrange(3600)), name)
        for hour in range(DAYS * 24)
        if hour // 24 != HOLE
        for name, (_, by_day, by_night, _) in JOBS.items()
        for _ in range(_poisson(rng, by_day if 7 <= hour % 24 < 19 else by_night))
    )
    lines, samples = (
        [COLUMNS],
        ["timestamp,Hostname,gpu,GPU_I_ID,hpc_job,DCGM_FI_PROF_SM_ACTIVE,DCGM_FI_DEV_FB_USED"],
    )
    last = BEGIN + timedelta(days=DAYS)
    for number, (submit, name) in enumerate(submitted):
        gres, _, _, seconds = JOBS[name]
        start = submit + timedelta(seconds=rng.randrange(5, 60))
        end = start + timedelta(seconds=max(10, int(rng.expovariate(1 / seconds))))
        if (end - BEGIN).days == HOLE:
            end = start + timedelta(seconds=10)
        job = 41000 + number
        going = end >= last
        shown = "Unknown" if going else _clock(end)
        elapsed = _elapsed(int((min(end, last) - start).total_seconds()))
        about = f"{name}-{number % 97}|user{number % 5}|lab|gpu|{_clock(submit)}|{_clock(start)}|{shown}|{elapsed}"
        tres = f"cpu=8,gres/gpu:{gres}=1,gres/gpu=1,mem=32G,node=1"
        lines.append(f"{job}|{about}|{'RUNNING' if going else 'COMPLETED'}|{tres}")
        if number % 40 == 0:
            lines.append(
                f"{job}.batch|batch||lab||{_clock(start)}|{_clock(start)}|{shown}|{elapsed}|COMPLETED|cpu=8"
            )
        hour = start.replace(minute=0, second=0) + timedelta(hours=1)
        if hour < min(end, last):
            memory = rng.randrange(3000, 9000)
            samples.append(f"{_clock(hour)}Z,node0,0,{number % 7},{job},{rng.uniform(0.1, 0.9):.3f},{memory}")
    return "\n".join(lines) + "\n", "\n".join(samples) + "\n"


def job_profiles() -> str:
    """A table of profiles for the inference jobs, whose request is a job: a slice runs one at a time."""
    lines = ["model,profile,batch_size,throughput_rps,latency_ms,basis"]
    for name, (gres, _, _, seconds) in JOBS.items():
        for profile, speed in (("1g.10gb", 1.0), ("2g.20gb", 1.8), ("3g.40gb", 2.5), ("7g.80gb", 4.5)):
            if name != "train-vit":
                duration = seconds / speed * (1.8 if gres.endswith("2g.20gb") else 1.0)
                lines.append(f"{name},{profile},1,{1 / duration:.6g},{duration * 1000:.0f},estimated")
    return "\n".join(lines) + "\n"


def _poisson(rng: random.Random, mean: float) -> int:
    """Arrivals in an hour with exponential times between them."""
    count, hours = 0, rng.expovariate(mean)
    while hours < 1:
        count, hours = count + 1, hours + rng.expovariate(mean)
    return count
