"""What a load asks: prompts of given lengths, and lengths as people's chats have them.

The mix follows the lengths of ShareGPT conversations as Kwon et al. 2023 ("Efficient Memory
Management for Large Language Model Serving with PagedAttention", figure 11) give them: 161 tokens
of prompt and 338 of answer in the mean. They are drawn from log-normal distributions with those
means. The spread (sigma 1 of the logarithm) is ours, since the paper shows it in a plot only, and
so are the bounds of 4 and 1,024 tokens, which bring the means down to about 156 and 302.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from twostroke.bench.sample import Ask

MEAN_PROMPT_TOKENS = 161
MEAN_ANSWER_TOKENS = 338
_SIGMA = 1.0
_FEWEST, _MOST = 4, 1024

# One token each, with the space before, in the vocabularies of most models.
_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from "
    "or had an they which one you were all her she there would their we him been has when who "
    "will no more if out so up said what its about than into them can only other time new some "
    "could these two may first then do any like my now over such our man even most made after "
    "also did many off before must well back through years where much your way down should "
    "because long each just state those people too mr how little good world make very year "
    "still see own work men day get here old life both between being under three never know "
    "same last another while us might great go come since against right came take used himself "
    "few house American use place during high without again home around small however found "
    "part school every don water thought head general"
)
_WORDS = tuple(_TEXT.split())


def text_of(num_tokens: int, choose: random.Random) -> str:
    """A text of about `num_tokens` tokens that begins like no other, so that no cache has it."""
    return " ".join(choose.choices(_WORDS, k=max(num_tokens, 1)))


def fixed_asks(prompt_tokens: int, answer_tokens: int, seed: int) -> Iterator[Ask]:
    """Requests of one length without end."""
    choose = random.Random(seed)
    while True:
        yield Ask(text_of(prompt_tokens, choose), answer_tokens)


def mixed_asks(seed: int) -> Iterator[Ask]:
    """Requests of mixed lengths without end; see the module."""
    choose = random.Random(seed)
    while True:
        prompt_tokens = _length(choose, MEAN_PROMPT_TOKENS)
        yield Ask(text_of(prompt_tokens, choose), _length(choose, MEAN_ANSWER_TOKENS))


def _length(choose: random.Random, mean: float) -> int:
    """Log-normal: its mean is exp(mu + sigma**2 / 2)."""
    length = choose.lognormvariate(math.log(mean) - _SIGMA**2 / 2, _SIGMA)
    return round(min(max(length, _FEWEST), _MOST))


def poisson_arrivals(rate_per_s: float, count: int, *, seed: int) -> list[float]:
    """Seconds at which requests come that do not wait for each other.

    A Poisson process: the time between two of them is exponential with the mean 1 / rate.
    """
    choose, now, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        now += choose.expovariate(rate_per_s)
        arrivals.append(now)
    return arrivals
