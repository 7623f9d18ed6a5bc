"""A slow simulator of engines that shares nothing with the product's: fractions, lists, one step after another.

It follows the rules word for word and keeps the time of every token. Servers are those of a request as plain JSON.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

INSTANT = Fraction(1, 10**9)


@dataclass
class Sequence:
    """One request; `times` are those of its tokens, ms."""

    number: int
    prompt: int
    output: int
    cached: int
    processed: int = 0
    start: Fraction | None = None
    preempted: bool = False
    times: list[Fraction] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.prompt + len(self.times)


@dataclass
class Engine:
    """One engine and what it did."""

    data: dict[str, Any]
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    end: Fraction | None = None
    busy: Fraction = Fraction(0)
    steps: int = 0
    sequences: int = 0
    preemptions: int = 0
    peak: int = 0

    def blocks(self, tokens: int) -> int:
        size: int = self.data.get("block_tokens", 16)
        return (tokens + size - 1) // size

    def held(self, taken: dict[int, int]) -> int:
        return sum(
            self.blocks(sequence.processed + taken.get(sequence.number, 0)) for sequence in self.running
        )

    def lacks(self, tokens: int, taken: dict[int, int]) -> bool:
        """Whether so many blocks more than those held are not there."""
        most: int = self.data["kv_blocks"]
        return self.held(taken) + tokens > most

    def begin(self, now: Fraction) -> None:
        budget = self.data["max_num_batched_tokens"]
        taken: dict[int, int] = {}
        preempted = False
        place = 0
        while place < len(self.running):
            sequence = self.running[place]
            chunk = min(sequence.tokens - sequence.processed, budget)
            more = self.blocks(sequence.processed + chunk) - self.blocks(sequence.processed)
            while sequence in self.running and self.lacks(more, taken):
                last = self.running.pop()
                last.processed, last.preempted = 0, True
                self.waiting.insert(0, last)
                self.preemptions += 1
                preempted = True
            if sequence in self.running:
                taken[sequence.number] = chunk
                budget -= chunk
                self.peak = max(self.peak, self.held(taken))
            place += 1
        while not preempted and self.waiting and budget:
            sequence = self.waiting[0]
            if len(self.running) >= self.data["max_num_seqs"]:
                break
            begun = 0 if sequence.preempted else min(sequence.cached, sequence.prompt - 1)
            chunk = min(sequence.tokens - begun, budget)
            wanted = sequence.tokens if self.data.get("reserve_full_prompt", True) else begun + chunk
            if self.lacks(self.blocks(wanted), taken):
                break
            self.waiting.pop(0)
            self.running.append(sequence)
            sequence.processed = begun
            sequence.start = now if sequence.start is None else sequence.start
            taken[sequence.number] = chunk
            budget -= chunk
            self.peak = max(self.peak, self.held(taken))
        length = self.length(taken)
        for sequence in self.running:
            sequence.processed += taken[sequence.number]
        self.busy += length
        self.steps += 1
        self.sequences += len(taken)
        self.end = now + length

    def length(self, taken: dict[int, int]) -> Fraction:
        prompt = decoding = context = Fraction(0)
        attention = Fraction(0)
        for sequence in self.running:
            chunk = taken[sequence.number]
            if sequence.times and sequence.tokens - sequence.processed == 1:
                decoding += 1
                context += sequence.processed + 1
            else:
                prompt += chunk
                attention += chunk * (sequence.processed + Fraction(chunk + 1, 2))
        works = {"prompt_token_ms": prompt, "sequence_ms": decoding, "context_token_ms": context}
        works["attention_ms"] = attention
        return max(
            Fraction(str(line["base_ms"]))
            + sum(Fraction(str(line.get(name, 0))) * work for name, work in works.items())
            for line in self.data["step"]
        )

    def finish(self) -> None:
        assert self.end is not None
        for sequence in list(self.running):
            if sequence.processed == sequence.tokens:
                sequence.times.append(self.end)
                if len(sequence.times) == sequence.output:
                    self.running.remove(sequence)
        self.end = None


def run(
    servers: list[dict[str, Any]], times_s: list[float], lengths: list[tuple[int, int, int]]
) -> tuple[list[Sequence], list[Engine]]:
    """Every request with the times of its tokens (ms, on the axis of `times_s`), and every engine.

    `lengths` are prompt, output and cached tokens of each request.
    """
    engines = [Engine(server) for server in servers for _ in range(server.get("count", 1))]
    arrivals = [Fraction(str(time)) * 1000 for time in times_s]
    requests = [Sequence(number, *length) for number, length in enumerate(lengths)]
    arrived = 0
    while True:
        events = [engine.end for engine in engines if engine.end is not None] + arrivals[arrived:]
        if not events:
            return requests, engines
        now = min(events)
        for engine in engines:
            if engine.end is not None and engine.end < now + INSTANT:
                engine.finish()
        while arrived < len(arrivals) and arrivals[arrived] < now + INSTANT:
            loads = [len(engine.waiting) + len(engine.running) for engine in engines]
            engines[loads.index(min(loads))].waiting.append(requests[arrived])
            arrived += 1
        for engine in engines:
            if engine.end is None and (engine.waiting or engine.running):
                engine.begin(now)
