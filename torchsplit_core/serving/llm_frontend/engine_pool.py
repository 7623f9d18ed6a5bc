"""The engines of a serving plan as child processes: started side by side, stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from torchsplit_core.serving.llm_engine.process import LlmEngineProcess, llm_engine
from torchsplit_core.serving.plan import ServedEngine
from torchsplit_core.values import InputFault, Progress


@dataclass(frozen=True, slots=True)
class StartedEngine:
    """An engine that takes requests, prompt and output of `max_model_len` tokens together at most, until `ending` is
    closed."""

    served: ServedEngine
    process: LlmEngineProcess
    max_model_len: int
    ending: ExitStack


class EnginePool:
    """Starts and stops the engines; each is a process that ends when its standard input does."""

    def __init__(self, engines: Sequence[ServedEngine]) -> None:
        self._engines = tuple(engines)
        self._threads = ThreadPoolExecutor(max(1, len(self._engines)))
        self._starting: list[Future[StartedEngine]] = []
        self.ended = False

    async def start(self, progress: Progress) -> tuple[StartedEngine, ...]:
        """Start every engine and wait until all take requests. Raises the first InputFault."""
        if self._engines:
            names = dict.fromkeys(engine.model for engine in self._engines)
            progress(0.5, f"starting {len(self._engines)} engines of {', '.join(names)}")
        self._starting = [self._threads.submit(_start_engine, engine) for engine in self._engines]
        return tuple(await asyncio.gather(*map(asyncio.wrap_future, self._starting)))

    async def restart(self, lost: StartedEngine) -> StartedEngine:
        """End what is left of an engine, and start it anew. Raises InputFault where it does not start."""
        starting = self._threads.submit(_start_again, lost)
        self._starting.append(starting)
        return await asyncio.wrap_future(starting)

    async def stop(self) -> None:
        """End every process, also of an engine that is still starting."""
        self.ended = True
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        for starting in self._starting:
            if not starting.cancel():
                # An engine that did not start has said so.
                with suppress(Exception):
                    self._threads.submit(starting.result().ending.close)
        self._threads.shutdown()


def _start_again(lost: StartedEngine) -> StartedEngine:
    # A process that died says so when it is ended.
    with suppress(InputFault):
        lost.ending.close()
    return _start_engine(lost.served)


def _start_engine(served: ServedEngine) -> StartedEngine:
    with ExitStack() as stack:
        process = stack.enter_context(llm_engine(served.settings))
        return StartedEngine(served, process, process.engine()["max_model_len"], stack.pop_all())
