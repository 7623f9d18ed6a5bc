"""A stage of a cut model in a worker's process, without a server."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchsplit_core.serving.plan import BoundSlice, ServedModel, WorkerSpec
from torchsplit_core.serving.worker_process import BatchResult, WorkerConfig, WorkerProcess
from torchsplit_core.values import Device


def run_stage(folder: Path, source: str, rows: list[bytes], position: int = 0) -> BatchResult:
    """The result of one stage for a batch: the bytes of each row of its only input. Raises what the start raises."""
    device = Device("cpu", "cpu:1c", "a core", "CPU", "1c", "cpu", None, None, None, None)
    core = min(os.sched_getaffinity(0))
    config = WorkerConfig(
        WorkerSpec("worker", "server", "model", f"stage{position}", position, "slice", len(rows), 0),
        ServedModel("model", source, ("stage0", "stage1"), (), 0.0),
        BoundSlice("slice", "host0", "1c", 0, device, (core,)),
        trust=False,
        directory=str(folder),
    )

    async def run() -> BatchResult:
        process = WorkerProcess(config)
        # The process ends with the thread that started it.
        with ThreadPoolExecutor(1) as launcher:
            try:
                await process.start(launcher)
                return await process.run(len(rows), rows, [sum(map(len, rows))])
            finally:
                process.disconnect()
                await asyncio.to_thread(process.terminate)

    return asyncio.run(run())
