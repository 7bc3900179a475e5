"""Prompts of a given length out of words that are one token each: no meaning, no tokenizer, no download."""

from cadenza.errors import UsageError
from cadenza.prompts.source import Draw, PromptSource
from cadenza.prompts.words import WORDS
from cadenza.record import Message, Request, printable

MAX_WORDS = 1_000_000


class RandomSource:
    """`low` to `high` words a prompt, both included. The salt counts among them; it is the least a prompt can be."""

    def __init__(self, low: int, high: int, draw: Draw) -> None:
        self._range = (low, high)
        self._draw = draw

    def request(self, index: int) -> Request:
        rng = self._draw.rng(index)
        count = rng.randint(*self._range)
        output_tokens = self._draw.length(rng)
        words = self._draw.salt(index).split() if self._draw.unique else []
        words += rng.choices(WORDS, k=max(0, count - len(words)))
        message = Message(role="user", content=" ".join(words))
        return Request(index=index, messages=(message,), output_tokens=output_tokens, prompt_tokens=len(words))


def parse_random(argument: str | None, draw: Draw) -> PromptSource:
    """`N` or `LO:HI`, in tokens."""
    parts = (argument or "").split(":")
    if len(parts) in (1, 2) and all(part.isascii() and part.isdigit() for part in parts):
        low, high = int(parts[0]), int(parts[-1])
        if 1 <= low <= high <= MAX_WORDS:
            return RandomSource(low, high, draw)
    given = printable(f"random:{argument or ''}", 40)
    raise UsageError(
        f"prompts {given!r} are not understood: give random:N or random:LO:HI, tokens from 1 to {MAX_WORDS:,}, "
        "e.g. random:512 or random:100:2000"
    )
