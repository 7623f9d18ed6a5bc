"""transformers' continuous batching on a CPU: requests in, tokens out as they come. Loads torch.

Its scheduler is the nearest to vLLM's that it has: those that decode first, then prompts in order of arrival, in chunks
within the budget of tokens. It differs in that a request that finds no free block lets smaller ones pass, that a
request is admitted by its first chunk (`reserve_full_prompt` false), and that a preempted one joins the end of those
waiting. Prefixes are not shared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep, StepLog
from torchsplit_core.values import InputFault

START_S = 120.0
END_S = 30.0
NO_TOKEN = -1
"""An end of text that no model gives."""

OnTokens = Callable[[list[int], bool, str], None]
"""Gets the new tokens of a request, whether they are its last, and why it failed (empty: it did not)."""


class ContinuousBatch:
    """The engine's thread and its requests."""

    def __init__(self, model: Any, settings: LlmEngineSettings) -> None:
        self.log = StepLog()
        generation = GenerationConfig(do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0)
        batching = ContinuousBatchingConfig(
            page_size=settings.block_tokens,
            num_blocks=settings.kv_blocks,
            max_batch_tokens=settings.max_num_batched_tokens,
            max_requests_per_batch=settings.max_num_seqs,
            scheduler_type="fifo",
            safety_margin=0.0,
            allow_block_sharing=False,
            use_async_batching=False,
            use_cuda_graph=False,
            max_blocks_per_request=0,
            seed=settings.seed,
        )
        self._eos = model.generation_config.eos_token_id
        self._manager = model.init_continuous_batching(generation, batching)
        self._number = 0

    def start(self) -> None:
        """Start the engine's thread and wait until it takes requests. Raises InputFault where it does not start."""
        self._manager.batch_processor = self._manager._create_batch_processor()
        self.log.watch(self._manager.batch_processor)
        # The thread resets a processor that is there, and keeps it.
        self._manager.start()
        until = time.monotonic() + START_S
        while not hasattr(self._manager, "current_batch"):
            if time.monotonic() > until or not self._manager.is_running():
                raise InputFault(
                    "the engine", "does not start", "Give it a smaller cache or a smaller model."
                )
            time.sleep(0.001)

    @property
    def alive(self) -> bool:
        """Whether the engine's thread takes requests."""
        status = self._manager.background_thread_status
        return bool(self._manager.is_running()) and status.can_accept_new_requests() is None

    def submit(self, prompt: Sequence[int], tokens: int, until_length: bool, on_tokens: OnTokens) -> str:
        """Add a request from the event loop, in which `on_tokens` is called at each of its tokens; its id."""
        name = f"request-{self._number}"
        self._number += 1
        seen = 0

        def on_output(output: Any) -> None:
            nonlocal seen
            new, seen = output.generated_tokens[seen:], len(output.generated_tokens)
            on_tokens(new, output.is_finished(), output.error or "")

        self._manager.register_result_handler(name, on_output)
        added = self._manager.add_request(
            list(prompt),
            request_id=name,
            max_new_tokens=tokens,
            streaming=True,
            eos_token_id=NO_TOKEN if until_length or self._eos is None else self._eos,
        )
        if added is None:
            asyncio.get_running_loop().call_soon(on_tokens, [], True, "the engine has stopped")
        return name

    def take_steps(self) -> list[LoggedStep]:
        """The steps since they were last taken."""
        return self.log.take()

    def cancel(self, name: str) -> None:
        """Leave a request out from the next step on; nobody hears of it any more."""
        router = self._manager.output_router
        with router._lock:
            router.result_handlers.pop(name, None)
        self._manager.cancel_request(name)

    def stop(self) -> None:
        """Stop the thread; requests in flight fail."""
        self._manager.stop(block=True, timeout=END_S, hard_stop=True)


def prepare_torch(threads: int) -> None:
    """Threads of torch in this process."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
