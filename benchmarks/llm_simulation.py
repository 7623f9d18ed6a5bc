"""The simulator of engines against a plain loop over their steps, in one run: seconds, and equal tokens.

The plain loop does in every step what the rules of engines say, a sequence at a time, with times as doubles. Both
get the same requests; every first and last token must be equal to 1e-9 relative. Processor seconds, medians of
several turns taken alternately. Exit code 1 if two tokens differ, or ours is less than 20 times as fast where blocks
suffice: where they do not, steps between two preemptions are few.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.continuous import run_engines
from torchsplit_core.values import EngineServer, StepLine

GOAL = 20.0
LINES = (
    StepLine(10.346, context_token_ms=8.0353e-05),
    StepLine(0.5, prompt_token_ms=0.0858, sequence_ms=0.0858),
)
"""A decoder with 8 billion weights in bf16 on an A100-80GB, as in examples/simulations."""


@dataclass(frozen=True)
class Traffic:
    """Poisson arrivals of requests with log-normal prompts (cv 0.8) and outputs; `output_cv` 0: all equal."""

    name: str
    requests: int
    rate_rps: float
    prompt: float
    output: float
    output_cv: float
    kv_blocks: int = 25_000

    def draw(self) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        rng = np.random.default_rng(0)
        arrivals = np.cumsum(rng.standard_exponential(self.requests)) / self.rate_rps
        lengths = []
        for mean, cv in ((self.prompt, 0.8), (self.output, self.output_cv)):
            variance = np.log1p(cv**2)
            drawn = mean * np.exp(np.sqrt(variance) * rng.standard_normal(self.requests) - variance / 2)
            lengths.append(np.ceil(drawn).clip(1, 4000).astype(np.int64))
        return arrivals, lengths[0], lengths[1]


CASES = (
    Traffic("log of 300 requests, overloaded", 300, 10.25, 857, 653, 0.5),
    Traffic("10,000 chats of 300 tokens", 10_000, 10.0, 400, 300, 0.0),
    Traffic("10,000 chats, overloaded", 10_000, 60.0, 400, 300, 0.0),
    Traffic("10,000 chats, few blocks", 10_000, 10.0, 400, 300, 0.3, 2_000),
    Traffic("100 long answers, nearly idle", 100, 0.05, 400, 2_000, 0.3),
)


class PlainLoop:
    """One engine, step by step and sequence by sequence."""

    def __init__(self, server: EngineServer, prompts: list[int], outputs: list[int]) -> None:
        self.server, self.prompts, self.outputs = server, prompts, outputs
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.processed = [0] * len(prompts)
        self.given = [0] * len(prompts)
        self.free = server.kv_blocks
        self.first, self.last = ([0.0] * len(prompts) for _ in range(2))

    def run(self, arrivals_ms: list[float]) -> tuple[list[float], list[float]]:
        now, arrived = 0.0, 0
        while arrived < len(arrivals_ms) or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = arrivals_ms[arrived]
            while arrived < len(arrivals_ms) and arrivals_ms[arrived] < now + 1e-9:
                self.waiting.append(arrived)
                arrived += 1
            now += self.step()
            self.give_tokens(now)
        return self.first, self.last

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.server.block_tokens)

    def step(self) -> float:
        budget, preempted = self.server.max_num_batched_tokens, False
        chunks: dict[int, int] = {}
        for request in list(self.running):
            if request not in self.running:
                break
            begun = self.processed[request]
            chunk = min(self.prompts[request] + self.given[request] - begun, budget)
            more = self.blocks(begun + chunk) - self.blocks(begun)
            while more > self.free and request in self.running:
                preempted = True
                last = self.running.pop()
                self.free += self.blocks(self.processed[last])
                self.processed[last] = 0
                self.waiting.appendleft(last)
            if request in self.running:
                self.free -= more
                budget -= chunk
                chunks[request] = chunk
        while not preempted and self.waiting and len(self.running) < self.server.max_num_seqs and budget:
            request = self.waiting[0]
            tokens = self.prompts[request] + self.given[request]
            chunk = min(tokens, budget)
            if self.blocks(tokens) > self.free:
                break
            self.free -= self.blocks(chunk)
            self.running.append(self.waiting.popleft())
            budget -= chunk
            chunks[request] = chunk
        return self.length_ms(chunks)

    def length_ms(self, chunks: dict[int, int]) -> float:
        prompt_tokens = sequences = context = 0
        attention = 0.0
        for request, chunk in chunks.items():
            begun = self.processed[request]
            if self.given[request] and self.prompts[request] + self.given[request] - begun == 1:
                sequences += 1
                context += begun + 1
            else:
                prompt_tokens += chunk
                attention += chunk * (begun + (chunk + 1) / 2)
            self.processed[request] = begun + chunk
        return max(
            line.base_ms
            + line.prompt_token_ms * prompt_tokens
            + line.sequence_ms * sequences
            + line.context_token_ms * context
            + line.attention_ms * attention
            for line in self.server.step
        )

    def give_tokens(self, now: float) -> None:
        for request in list(self.running):
            if self.processed[request] < self.prompts[request] + self.given[request]:
                continue
            if not self.given[request]:
                self.first[request] = now
            self.given[request] += 1
            if self.given[request] == self.outputs[request]:
                self.last[request] = now
                self.running.remove(request)
                self.free += self.blocks(self.processed[request])


def main() -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--largest", type=int, default=10_000, help="requests of a case at most")
    options = parser.parse_args()
    print(
        "| case | requests | steps | sequences a step | preemptions | ours s | plain loop s | ratio | largest error |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    faults = 0
    for case in CASES:
        arrivals, prompts, outputs = case.draw()
        arrivals, prompts, outputs = (
            arrivals[: options.largest],
            prompts[: options.largest],
            outputs[: options.largest],
        )
        server = EngineServer("e", "m", "whole", 128, 2048, case.kv_blocks, LINES)
        times_ms, lengths = (arrivals * 1e3).tolist(), (prompts.tolist(), outputs.tolist())
        cached = np.zeros(len(arrivals), dtype=np.int64)
        ours_s, plain_s = [], []
        for _ in range(options.turns):
            began = time.process_time()
            run = run_engines(server, arrivals, prompts, outputs, cached)
            ours_s.append(time.process_time() - began)
            began = time.process_time()
            first, last = PlainLoop(server, *lengths).run(times_ms)
            plain_s.append(time.process_time() - began)
        ours, plain = statistics.median(ours_s), statistics.median(plain_s)
        tokens = np.concatenate([run.first_token_s, run.last_token_s]) * 1e3
        error = float(np.max(np.abs(tokens / np.array([*first, *last]) - 1)))
        engine = run.engines[0]
        print(
            f"| {case.name} | {len(arrivals):,} | {engine.steps:,} | {engine.sequences / engine.steps:.1f} "
            f"| {engine.preemptions:,} | {ours:.3f} | {plain:.2f} | {plain / ours:.0f} | {error:.0e} |",
            flush=True,
        )
        faults += error > 1e-9 or (plain / ours < GOAL and not engine.preemptions)
    print(f"\nFaults: {faults}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
