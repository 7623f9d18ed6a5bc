"""An engine that gives known tokens, for the endpoints over it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from torchsplit_core.serving.llm_engine.app import ServedText
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings
from torchsplit_core.serving.llm_engine.step_log import LoggedStep


class Alphabet:
    """Gives a, b, c, … one token at a time; fails as it is answer."""

    def __init__(self, error: str = "", fails_after: int = 0, stops_after: int | None = None) -> None:
        self.error, self.fails_after, self.stops_after = error, fails_after, stops_after
        self.alive = True
        self.asked: list[Any] = []
        self.cancelled: list[str] = []

    def submit(
        self,
        prompt: Sequence[int],
        tokens: int,
        until_length: bool,
        on_tokens: Callable[[list[int], bool, str], None],
    ) -> str:
        self.asked.append((list(prompt), tokens, until_length))
        last = tokens if until_length or self.stops_after is None else min(tokens, self.stops_after)

        def give(number: int) -> None:
            if self.error and number == self.fails_after:
                on_tokens([], True, self.error)
                return
            on_tokens([97 + number], number + 1 == last, "")
            if number + 1 < last:
                asyncio.get_running_loop().call_soon(give, number + 1)

        asyncio.get_running_loop().call_soon(give, 0)
        return f"r{len(self.asked)}"

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    def take_steps(self) -> list[LoggedStep]:
        return []


class Letters:
    def write(self, token: int) -> str:
        return chr(token)


TEXT = ServedText(lambda text: list(text.encode()), Letters, 256, 100)
SETTINGS = LlmEngineSettings("config.json", "tiny")
