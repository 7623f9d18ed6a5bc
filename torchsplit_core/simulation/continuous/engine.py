"""One engine: which sequences take part in each step, which are preempted, and how long the step takes.

Times are whole ticks, so that sums of step times are exact and equal instants compare equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from torchsplit_core.simulation.continuous.ticks import StepTicks
from torchsplit_core.values import EngineServer


class Engine:
    """Requests are numbers into `prompts`, `outputs` and `cached`; results go to `runs`."""

    def __init__(
        self,
        server: EngineServer,
        ticks: StepTicks,
        prompts: Sequence[int],
        outputs: Sequence[int],
        cached: Sequence[int],
    ) -> None:
        self.server, self.ticks = server, ticks
        self.prompts, self.outputs, self.cached = prompts, outputs, cached
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.processed: dict[int, int] = {}
        self.given: dict[int, int] = {}
        self.last_token: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.first_tokens: dict[int, int] = {}
        self.last_tokens: dict[int, int] = {}
        self.gaps: list[int] = []
        self.free = server.kv_blocks
        self.kv_peak = self.preemptions = self.steps = self.sequences = self.busy = 0
        self.end: int | None = None

    @property
    def load(self) -> int:
        """Requests waiting and running."""
        return len(self.waiting) + len(self.running)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.server.block_tokens)

    def _take(self, request: int, tokens: int) -> None:
        held = self._blocks(self.processed[request])
        self.free -= self._blocks(self.processed[request] + tokens) - held
        self.kv_peak = max(self.kv_peak, self.server.kv_blocks - self.free)

    def _preempt_last(self) -> int:
        request = self.running.pop()
        self.free += self._blocks(self.processed[request])
        self.processed[request] = 0
        self.waiting.appendleft(request)
        self.preemptions += 1
        return request

    def begin(self, now: int) -> None:
        """Begin a step, if any request is here; `end` is when it ends."""
        if not self.load:
            return
        budget = self.server.max_num_batched_tokens
        chunks: dict[int, int] = {}
        preempted = False
        place = 0
        while place < len(self.running):
            request = self.running[place]
            chunk = min(self._tokens(request) - self.processed[request], budget)
            need = self._blocks(self.processed[request] + chunk) - self._blocks(self.processed[request])
            gone = False
            while need > self.free and not gone:
                preempted = True
                gone = self._preempt_last() == request
            if gone:
                break
            self._take(request, chunk)
            chunks[request] = chunk
            budget -= chunk
            place += 1
        while not preempted and self.waiting and len(self.running) < self.server.max_num_seqs and budget > 0:
            request = self.waiting[0]
            given = self.given.setdefault(request, 0)
            tokens = self._tokens(request)
            begun = 0 if request in self.starts else min(self.cached[request], self.prompts[request] - 1)
            chunk = min(tokens - begun, budget)
            if self._blocks(tokens if self.server.reserve_full_prompt else begun + chunk) > self.free:
                break
            self.waiting.popleft()
            self.starts.setdefault(request, now)
            assert given == self.given[request]
            self.processed[request] = 0
            self._take(request, begun + chunk)
            self.processed[request] = begun
            self.running.append(request)
            chunks[request] = chunk
            budget -= chunk
        prompt_tokens = sequences = context = attention = 0
        for request, chunk in chunks.items():
            begun = self.processed[request]
            if self.given[request] and self._tokens(request) - begun == 1:
                sequences += 1
                context += begun + 1
            else:
                prompt_tokens += chunk
                attention += chunk * (2 * begun + chunk + 1)
            self.processed[request] = begun + chunk
        self.steps += 1
        self.sequences += len(chunks)
        length = self.ticks.step(prompt_tokens, sequences, context, attention)
        self.busy += length
        self.end = now + length

    def _tokens(self, request: int) -> int:
        return self.prompts[request] + self.given[request]

    def finish(self) -> int:
        """End the step; how many requests leave."""
        now = self.end
        assert now is not None
        self.end = None
        staying = []
        for request in self.running:
            if self.processed[request] == self._tokens(request):
                if self.given[request]:
                    self.gaps.append(now - self.last_token[request])
                else:
                    self.first_tokens[request] = now
                self.last_token[request] = now
                self.given[request] += 1
                if self.given[request] == self.outputs[request]:
                    self.last_tokens[request] = now
                    self.free += self._blocks(self.processed[request])
                    continue
            staying.append(request)
        left = len(self.running) - len(staying)
        self.running = staying
        return left
