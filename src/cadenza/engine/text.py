"""Tokens are words: what a prompt counts, and what the engine says. No tokenizer, no randomness."""

from collections.abc import Sequence

# A chat template frames every turn; ChatML spends five tokens on it: <|im_start|>, role, newline, <|im_end|>, newline.
TEMPLATE_TOK_PER_MESSAGE = 5

_SENTENCE = (
    "a steady hand keeps the tempo while every voice enters in turn and the phrase returns to its first note "
    "then rests so that all who listen may hear how one bar follows another without haste or delay"
)
WORDS: tuple[str, ...] = tuple(f" {word}" for word in _SENTENCE.split())


def word(request: int, n: int) -> str:
    """The `n`-th token (from 1) that request number `request` is answered with: one word and the space before it."""
    return WORDS[(request + n) % len(WORDS)]


def count_prompt(text: str) -> int:
    """Tokens of plain text: its whitespace-separated words."""
    return len(text.split())


def count_chat(contents: Sequence[str]) -> int:
    """Tokens of a conversation, given its messages' texts: their words, and the template's around each."""
    return sum(count_prompt(text) + TEMPLATE_TOK_PER_MESSAGE for text in contents)
