"""An engine that gives known tokens, for the endpoints over it."""

import asyncio

from torchsplit_core.serving.llm_engine.app import ServedText
from torchsplit_core.serving.llm_engine.settings import LlmEngineSettings


class Alphabet:
    """Gives a, b, c, … one token at a time; fails as it is answer."""

    def __init__(self, error="", fails_after=0, stops_after=None):
        self.error, self.fails_after, self.stops_after = error, fails_after, stops_after
        self.alive = True
        self.asked, self.cancelled = [], []

    def submit(self, prompt, tokens, until_length, on_tokens):
        self.asked.append((list(prompt), tokens, until_length))
        last = tokens if until_length or self.stops_after is None else min(tokens, self.stops_after)

        def give(number):
            if self.error and number == self.fails_after:
                on_tokens([], True, self.error)
                return
            on_tokens([97 + number], number + 1 == last, "")
            if number + 1 < last:
                asyncio.get_running_loop().call_soon(give, number + 1)

        asyncio.get_running_loop().call_soon(give, 0)
        return f"r{len(self.asked)}"

    def cancel(self, name):
        self.cancelled.append(name)

    def take_steps(self):
        return []


class Letters:
    def write(self, token):
        return chr(token)


TEXT = ServedText(lambda text: list(text.encode()), Letters, 256, 100)
SETTINGS = LlmEngineSettings("config.json", "tiny")
