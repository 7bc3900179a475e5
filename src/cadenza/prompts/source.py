"""The plug point for prompts: request number i of a point, as a pure function, so that any worker can make any of them.

To add one: a file beside this, a test of the same name, a line in `SOURCES` (`prompts/catalogue.py`).
"""

import random
from typing import Protocol

import msgspec

from cadenza.prompts.salt import salt
from cadenza.record import Message, Request

# Tokens to ask for where neither the spec nor the dataset says: a short answer of a chat.
DEFAULT_OUTPUT_TOKENS = (128, 256)


class PromptSource(Protocol):
    """Requests of one point of one run."""

    def request(self, index: int) -> Request:
        """Request number `index` (0-based, warm-up included); the same one whenever and wherever it is asked for."""
        ...


class Draw(msgspec.Struct, frozen=True):
    """What every source needs to make a request of its own.

    seed, point     the run's seed, the point's index: with the request's index they seed all that is drawn
    output_tokens   (low, high), both included, drawn per request; None: the row's own, else 128 to 256
    unique          begin each prompt with a salt
    """

    seed: int
    point: int
    output_tokens: tuple[int, int] | None = None
    unique: bool = True

    def rng(self, index: int) -> random.Random:
        """The generator of request `index`; Python's, whose draws are the same on every platform and version."""
        return random.Random(f"{self.seed}/{self.point}/{index}")

    def length(self, rng: random.Random, own: int | None = None) -> int:
        """How many tokens to ask for; `own` is what the dataset says."""
        if self.output_tokens is None and own is not None:
            return own
        return rng.randint(*(self.output_tokens or DEFAULT_OUTPUT_TOKENS))

    def salt(self, index: int) -> str:
        """The words that no other request of the run begins with."""
        return salt(self.seed, self.point, index)


class Row(msgspec.Struct, frozen=True):
    """One prompt of a dataset; `output_tokens` is what the dataset expects in answer, None: it does not say."""

    messages: tuple[Message, ...]
    output_tokens: int | None = None


class RowSource:
    """Requests out of rows, in a seeded order, wrapping round where there are more requests than rows.

    The order depends on the seed alone: every point sees the same rows, so that a curve over points compares like
    with like. `skipped` counts what the dataset held that could not be used.
    """

    def __init__(self, rows: list[Row], draw: Draw, skipped: int = 0) -> None:
        self.skipped = skipped
        self._rows = rows
        self._draw = draw
        self._order = list(range(len(rows)))
        random.Random(f"{draw.seed}/order").shuffle(self._order)

    def request(self, index: int) -> Request:
        row = self._rows[self._order[index % len(self._order)]]
        messages = row.messages
        if self._draw.unique:
            first = messages[0]
            salted = Message(role=first.role, content=f"{self._draw.salt(index)}\n\n{first.content}")
            messages = (salted, *messages[1:])
        output_tokens = self._draw.length(self._draw.rng(index), row.output_tokens)
        return Request(index=index, messages=messages, output_tokens=output_tokens)
