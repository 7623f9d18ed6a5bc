"""Seeded prompts of about a number of tokens, each another one, so that no prefix is cached twice."""

from __future__ import annotations

import random
from dataclasses import dataclass

_WORDS = """
about above after again along among apple basic beach begin below black blood board brain bread
break bring brown build catch cause chair cheap check chief child class clean clear climb clock
close cloud coast color count court cover cream cross crowd dance dream dress drink drive early
earth eight empty enemy enjoy enter equal event every exact extra field fight final first flame
floor focus force fresh front fruit glass grand grass great green group guard guess guide happy
heart heavy horse hotel house human image issue judge knife large laugh learn leave level light
limit local lunch magic major maybe metal minor money month motor mouth music never night noise
north novel nurse ocean offer order other paint paper party peace phone piece pilot place plain
plant plate point power press price prime prize proof proud queen quick quiet radio raise range
reach ready right river rough round route royal scale scene scope score sense serve shape share
sharp sheet shift shirt shock short sight skill sleep small smart smile smoke solid sound south
space speak speed spend sport staff stage stand start state steam steel stick still stock stone
store storm story study style sugar table taste teach thank thick thing think third throw title
today topic total touch tower track trade train treat trend trial trust truth uncle under union
unity until upper usage usual value video visit voice waste watch water wheel where which while
white whole woman world worry worth write wrong young youth
"""
WORDS = tuple(_WORDS.split())
"""Common English words of five letters: one token each in most vocabularies, and equally many bytes in all others."""


@dataclass(frozen=True, slots=True)
class PromptMaker:
    """Prompts of `words` words; the same seed and index make the same prompt."""

    words: int
    seed: int = 0

    def text(self, index: int) -> str:
        """The prompt of request `index`."""
        return " ".join(random.Random(f"{self.seed}:{index}").choices(WORDS, k=self.words))


def words_for(tokens: int, counts: list[tuple[int, int]]) -> int:
    """Words of a prompt of about `tokens` tokens, from two or one counts (words, tokens) of an endpoint.

    Tokens are a constant (what a chat puts around a prompt) and so many a word.
    """
    words, counted = counts[-1]
    constant, slope = 0.0, counted / words
    if len(counts) > 1 and counts[0][0] != words:
        slope = (counted - counts[0][1]) / (words - counts[0][0])
        constant = counted - slope * words
    return max(1, round((tokens - constant) / slope)) if slope > 0 else tokens
