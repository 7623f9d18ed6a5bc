"""One engine: which sequences take part in each step, which are preempted, and how long the step takes.

Steps that differ only by the growth of the contexts are taken together as a stretch: every running sequence decodes,
and none of those waiting can be admitted. It lasts until a sequence ends, blocks run short, another line limits the
steps, or a request comes that may be admitted. So the work is by events, not by steps or tokens. What depends on the
step is kept so that a step changes none of it:

- a sequence that decodes has processed `step + offset` tokens, so K is a sum of offsets plus S · (step + 1);
- it asks for a block at every step with (step + offset) mod block_tokens = 0, so blocks are counted by residue;
- it ends after a step that is known when it begins to decode.

Every running sequence advances at every step: one is admitted only while budget is left when all others have taken
what they can, and from then on each decodes, but for the one admitted last, whose prompt may take several steps. So a
gap between tokens is the length of a step, unless the sequence was preempted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from torchsplit_core.simulation.continuous.ticks import StepTicks
from torchsplit_core.values import EngineServer


class RequestLog:
    """Lengths of all requests, and the ticks of their starts, first and last tokens; -1 before these are known.

    The gaps of requests before `first_counted` are not kept.
    """

    __slots__ = (
        "cached",
        "first_counted",
        "first_tokens",
        "gaps",
        "last_tokens",
        "outputs",
        "prompts",
        "starts",
    )

    def __init__(self, prompts: list[int], outputs: list[int], cached: list[int], first_counted: int) -> None:
        self.prompts, self.outputs, self.cached = prompts, outputs, cached
        self.first_counted = first_counted
        self.starts, self.first_tokens, self.last_tokens = ([-1] * len(prompts) for _ in range(3))
        self.gaps: list[tuple[int, int, int, int]] = []
        """(length, growth, steps, sequences): a stretch of steps, each longer than the one before by `growth`."""


class Engine:
    """An engine between steps, or in a step or stretch that ends at `end`."""

    def __init__(self, server: EngineServer, ticks: StepTicks, requests: RequestLog) -> None:
        self.requests, self.lines = requests, ticks
        self.most_running, self.budget = server.max_num_seqs, server.max_num_batched_tokens
        self.kv_blocks, self.block_tokens = server.kv_blocks, server.block_tokens
        self.reserve = server.reserve_full_prompt
        self.waiting: deque[int] = deque()
        self.running: dict[int, None] = {}
        """In the order of admission."""
        self.end: int | None = None
        self.steps = self.sequences = self.busy = self.kv_peak = self.preemptions = 0
        self._free = server.kv_blocks
        # Sequences that decode: their offsets, the counts by residue, and the steps at whose ends they end.
        self._offsets: dict[int, int] = {}
        self._offset_sum = self._counted = 0
        self._residues: dict[int, int] = {}
        self._last_step: dict[int, int] = {}
        self._endings: list[tuple[int, int]] = []
        # The sequence whose prompt takes several steps: (request, tokens processed, all its tokens).
        self._partial: tuple[int, int, int] | None = None
        # Prompt chunks of this step: (request, tokens processed before, chunk, all tokens).
        self._chunks: list[tuple[int, int, int, int]] = []
        # Sequences that were preempted: all their tokens, and when the last one came. Of the late ones a single token
        # is left to process, so they decode, and their gap is longer than the step.
        self._tokens: dict[int, int] = {}
        self._last_token: dict[int, int] = {}
        self._late: list[int] = []
        # The steps until `end`: when they began, the first one's length and each further one's growth.
        self._began = self._length = self._growth = self._count = 0
        self._stretched = self._open = False

    @property
    def load(self) -> int:
        """Requests waiting and running."""
        return len(self.waiting) + len(self.running)

    def join(self, request: int, now: int, same_instant: int) -> bool:
        """A request arrives; whether this brings `end` forward.

        A stretch that could admit it ends with the first step whose end is later than `same_instant` before `now`.
        """
        self.waiting.append(request)
        if not self._open:
            return False
        self._open = False
        span = now - same_instant - self._began
        linear = self._length - self._growth / 2
        root = math.sqrt(linear * linear + 2.0 * self._growth * span)
        steps = int(2 * span / (linear + root)) if root else 0
        while self._after(steps) <= span:
            steps += 1
        while steps > 1 and self._after(steps - 1) > span:
            steps -= 1
        if steps >= self._count:
            return False
        self._count = steps
        self.end = self._began + self._after(steps)
        return True

    def _after(self, steps: int) -> int:
        """Ticks of the first steps of the stretch."""
        return steps * self._length + self._growth * (steps * (steps - 1) // 2)

    def begin(self, now: int) -> None:
        """Begin a step, or a stretch of them, if any request is here."""
        if not self.waiting and not self.running:
            return
        self._began = now
        self._chunks = []
        asked = self._residues.get(-self.steps % self.block_tokens, 0)
        free = self._free - asked
        budget = self.budget - len(self._offsets)
        if self._partial is not None:
            request, begun, tokens = self._partial
            chunk = min(tokens - begun, budget)
            more = self._blocks(begun + chunk) - self._blocks(begun)
            if more <= free:
                free -= more
                budget -= chunk
                self._chunks.append((request, begun, chunk, tokens))
            else:
                # It is the last of all, so it is the one that is preempted.
                free = -1
        if free < 0:
            self._make_room(asked, now)
        else:
            free = self._admit(free, budget, now)
            if not self._chunks and not self._late:
                self._stretch()
                return
            self._free = free
        self._peak(self._free)
        self._single_step()

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _peak(self, free: int) -> None:
        if self.kv_blocks - free > self.kv_peak:
            self.kv_peak = self.kv_blocks - free

    def _make_room(self, asked: int, now: int) -> None:
        """Preempt from the last until the blocks that the others ask for are free; nothing is admitted then.

        The sequences ask in the order of admission, each for one block, and the last one goes whenever none is free:
        in the end those stay whose blocks are there.
        """
        self._chunks = []
        self._peak(max(self._free - asked, 0))
        if self._partial is not None:
            request, begun, tokens = self._partial
            self._partial = None
            self._requeue(request, begun, tokens)
        while asked > self._free:
            request = next(reversed(self.running))
            begun = self.steps + self._offsets[request]
            asked -= begun % self.block_tokens == 0
            if request in self._late:
                self._late.remove(request)
            else:
                self._last_token[request] = now
            self._stop_decoding(request)
            self._requeue(request, begun, begun + 1)
        self._free -= asked

    def _requeue(self, request: int, begun: int, tokens: int) -> None:
        del self.running[request]
        self.waiting.appendleft(request)
        self._tokens[request] = tokens
        self._free += self._blocks(begun)
        self.preemptions += 1

    def _admit(self, free: int, budget: int, now: int) -> int:
        """Admit those waiting whose blocks are free; how many blocks are free then."""
        requests = self.requests
        while self.waiting and budget and len(self.running) < self.most_running:
            request = self.waiting[0]
            begun, tokens = 0, self._tokens.get(request, 0)
            if not tokens:
                tokens = requests.prompts[request]
                begun = min(requests.cached[request], tokens - 1)
            chunk = min(tokens - begun, budget)
            taken = self._blocks(begun + chunk)
            if (self._blocks(tokens) if self.reserve else taken) > free:
                break
            self.waiting.popleft()
            self.running[request] = None
            if requests.starts[request] < 0:
                requests.starts[request] = now
            self._chunks.append((request, begun, chunk, tokens))
            free -= taken
            budget -= chunk
        return free

    def _single_step(self) -> None:
        prompt_tokens = half_pairs = 0
        for _, begun, chunk, _ in self._chunks:
            prompt_tokens += chunk
            half_pairs += chunk * (2 * begun + chunk + 1)
        decoding = len(self._offsets)
        context = self._offset_sum + decoding * (self.steps + 1)
        self._stretched = self._open = False
        self._count, self._growth = 1, 0
        length = 0
        for base, prompt, sequence, token, pair in self.lines:
            line = base + prompt * prompt_tokens + sequence * decoding + token * context + pair * half_pairs
            length = max(length, line)
        self._length = length
        self.end = self._began + length

    def _stretch(self) -> None:
        """Take all steps together that differ only by the growth of the contexts."""
        endings = self._endings
        while self._last_step.get(endings[0][1]) != endings[0][0]:
            heappop(endings)
        steps = endings[0][0] - self.steps + 1
        decoding = len(self._offsets)
        context = self._offset_sum + decoding * (self.steps + 1)
        length = growth = -1
        for base, _, sequence, token, _ in self.lines:
            line, slope = base + sequence * decoding + token * context, token * decoding
            if line > length or (line == length and slope > growth):
                length, growth = line, slope
        for base, _, sequence, token, _ in self.lines:
            faster = token * decoding - growth
            if faster > 0:
                below = length - base - sequence * decoding - token * context
                steps = min(steps, below // faster + 1)
        if -(-steps // self.block_tokens) * decoding > self._free:
            steps = min(steps, self._steps_with_blocks(decoding))
        self._length, self._growth, self._count = length, growth, steps
        self._stretched = True
        self._open = not self.waiting and decoding < self.most_running and decoding < self.budget
        self.end = self._began + self._after(steps)

    def _steps_with_blocks(self, decoding: int) -> int:
        """How many steps the free blocks are enough for, from this one on."""
        cycles, free = divmod(self._free, decoding)
        residues, size = self._residues, self.block_tokens
        places: Iterable[int] = range(size)
        if size > 4 * len(residues):
            places = sorted((-self.steps - residue) % size for residue in residues)
        for place in places:
            free -= residues.get((-self.steps - place) % size, 0)
            if free < 0:
                return cycles * size + place
        raise AssertionError("all sequences together ask for more than is left of a division by their number")

    def _asked_in(self, steps: int) -> int:
        """Blocks that the next steps ask for."""
        cycles, rest = divmod(steps, self.block_tokens)
        asked = cycles * len(self._offsets)
        residues, size = self._residues, self.block_tokens
        if rest < len(residues):
            for step in range(-self.steps, -self.steps - rest, -1):
                asked += residues.get(step % size, 0)
            return asked
        return asked + sum(
            count for residue, count in residues.items() if (-self.steps - residue) % size < rest
        )

    def finish(self) -> int:
        """End the step or stretch; how many requests leave."""
        now, before = self.end, len(self.running)
        assert now is not None
        self.end = None
        decoding, counted, gaps = len(self._offsets), self._counted, self.requests.gaps
        if self._stretched:
            self._free -= self._asked_in(self._count)
            self._peak(self._free)
            self.sequences += decoding * self._count
        else:
            self.sequences += decoding + len(self._chunks)
        self.busy += now - self._began
        self.steps += self._count
        if self._late:
            for request in self._late:
                counted -= request >= self.requests.first_counted
                self._log_gap(request, now)
            self._late.clear()
        if counted:
            gaps.append((self._length, self._growth, self._count, counted))
        if self._endings and self._endings[0][0] < self.steps:
            self._end_sequences(now)
        for request, begun, chunk, tokens in self._chunks:
            self._end_chunk(request, begun + chunk, tokens, now)
        return before - len(self.running)

    def _end_sequences(self, now: int) -> None:
        """Those leave whose last token came with the step before this one."""
        endings = self._endings
        while endings and endings[0][0] < self.steps:
            step, request = heappop(endings)
            if self._last_step.get(request) == step:
                self._free += self._blocks(self.steps + self._offsets[request])
                self._stop_decoding(request)
                del self.running[request]
                self.requests.last_tokens[request] = now

    def _end_chunk(self, request: int, processed: int, tokens: int, now: int) -> None:
        """After a chunk of its prompt a sequence gives a token, or goes on with its prompt."""
        self._partial = None
        given = tokens - self.requests.prompts[request]
        output = self.requests.outputs[request]
        if processed == tokens:
            if given:
                self._log_gap(request, now)
            else:
                self.requests.first_tokens[request] = now
            if given + 1 == output:
                self._free += self._blocks(tokens)
                del self.running[request]
                self.requests.last_tokens[request] = now
            else:
                self._decode(request, processed, output - given - 1)
        elif given and processed == tokens - 1:
            self._late.append(request)
            self._decode(request, processed, output - given)
        else:
            self._partial = (request, processed, tokens)

    def _log_gap(self, request: int, now: int) -> None:
        """The gap of a sequence that was preempted meanwhile."""
        gap = now - self._last_token.pop(request)
        if request >= self.requests.first_counted:
            self.requests.gaps.append((gap, 0, 1, 1))

    def _decode(self, request: int, processed: int, tokens_left: int) -> None:
        offset = processed - self.steps
        self._offsets[request] = offset
        self._offset_sum += offset
        self._counted += request >= self.requests.first_counted
        residue = offset % self.block_tokens
        self._residues[residue] = self._residues.get(residue, 0) + 1
        last_step = self.steps + tokens_left - 1
        self._last_step[request] = last_step
        heappush(self._endings, (last_step, request))

    def _stop_decoding(self, request: int) -> None:
        offset = self._offsets.pop(request)
        self._offset_sum -= offset
        self._counted -= request >= self.requests.first_counted
        residue = offset % self.block_tokens
        self._residues[residue] -= 1
        if not self._residues[residue]:
            del self._residues[residue]
        del self._last_step[request]
