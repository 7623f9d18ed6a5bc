"""The names of TorchSplit's spans and attributes, with units: the contract for readers of exported spans.

Spans nest as the work does: `torchsplit.profile` contains its `torchsplit.profile.point`s. Code sets an
attribute by its short name (`batch_size=4`); it is exported with the prefix (`torchsplit.batch_size`), so
that it never collides with names of the semantic conventions.
"""

from __future__ import annotations

PREFIX = "torchsplit."

TRACE = "torchsplit.trace"
PROFILE = "torchsplit.profile"
PROFILE_POINT = "torchsplit.profile.point"
PROFILE_NODES = "torchsplit.profile.nodes"
PARTITION = "torchsplit.partition"
PLAN = "torchsplit.plan"
PLACE = "torchsplit.place"
SIMULATE = "torchsplit.simulate"
JOB = "torchsplit.job"
TRAIN = "torchsplit.train"
TRAIN_START = "torchsplit.train.start"

SPANS = {
    TRACE: "One model exported and read into a graph.",
    PROFILE: "One model profiled on one device, all batch sizes.",
    PROFILE_POINT: "One model timed end to end on one device at one batch size.",
    PROFILE_NODES: "Every operation of one model timed at the traced batch.",
    PARTITION: "One search for the cuts of one graph.",
    PLAN: "One plan solved and verified.",
    PLACE: "One placement searched and verified.",
    SIMULATE: "One simulation of models under load, its highest load included.",
    JOB: "One job from its start to its end.",
    TRAIN: "One training run, or its going on, until all its processes have ended.",
    TRAIN_START: "One start of all processes of a training run, until they ended or one was lost.",
}

ATTRIBUTES = {
    "model": "Name of the model as the person gave it, `sample:bert` say.",
    "architecture_hash": "Hash of the model's architecture, hexadecimal.",
    "device": "Where it ran: `cpu`, a GPU's type or its UUID.",
    "slice": "MIG profile, `3g.40gb` say; absent for a whole device.",
    "basis": "`measured`, `emulated` or `estimated`.",
    "batch_size": "Requests in one batch, a count.",
    "processes": "Processes that share the slice, or train together, a count.",
    "runs": "Timed runs, a count.",
    "p50_ms": "Median time of one batch, milliseconds.",
    "p95_ms": "95th percentile of the time of one batch, milliseconds.",
    "p99_ms": "99th percentile of the time of one batch, milliseconds.",
    "throughput_rps": "Requests per second.",
    "peak_bytes": "Most memory alive at one time, bytes.",
    "nodes": "Operations of the graph, a count.",
    "edges": "Edges of the graph, a count.",
    "stages": "Stages of the cut, a count.",
    "candidates": "Cuts found, a count.",
    "gpus": "GPUs of the fleet, a count.",
    "models": "Models of the request, a count.",
    "layers": "Layers of the decoder to place, a count.",
    "segments": "Segments of the placement, a count; 0 where there is none.",
    "status": "How a solver ended: `optimal`, `feasible`, `infeasible` or `timeout`.",
    "gap": "Relative gap between the outcome and its bound, 0 or more; 0 is proven.",
    "outcome": "How a point ended: `ok`, `out of memory`, `out of time` or `failed`.",
    "job": "Id of the job.",
    "step": "Last step of a training run that is done, a count.",
    "loss": "Mean loss over the samples of that step.",
    "restarts": "Starts of a training run's processes after the first, a count.",
    "lost": "How a start of a training run was lost, in words; absent where it ended well.",
    "gpu_busy_ratio": "Of each GPU of this node in a training run: share of time with a kernel, mean of the run.",
    "gpu_sm_active_ratio": "The same: time in which an SM had a warp, mean of the SMs, 0 to 1.",
    "gpu_dram_active_ratio": "The same: time in which data moved to or from its memory, 0 to 1.",
    "gpu_nvlink_sent_bytes_per_second": "The same: bytes sent over its NVLinks, per second.",
    "gpu_nvlink_received_bytes_per_second": "The same: bytes received over its NVLinks, per second.",
    "gpu_memory_used_bytes": "The same: its memory in use, bytes.",
    "gpu_temperature_celsius": "The same: its temperature, °C.",
    "gpu_power_watts": "The same: its power, W.",
    "from_store": "True where a stored result was taken and nothing was measured.",
}
