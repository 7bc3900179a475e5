"""Tokens are words: the ids of a prompt, and what the engine says. No tokenizer, no randomness.

A word's id is its CRC-32, so a conversation that carries an earlier answer begins with the very ids that the engine
read and produced then. The template's special tokens have ids of their own, Qwen's.
"""

from collections.abc import Iterable
from zlib import crc32

from cadenza.engine.core.sequence import Sequence

# ChatML around every message: <|im_start|>, its role, newline, …, <|im_end|>, newline; and before the answer:
# <|im_start|>, "assistant", newline.
TEMPLATE_TOK_PER_MESSAGE = 5
GENERATION_TOK = 3

_START, _END, NEWLINE = 151644, 151645, 198
_SPECIAL = {_START: "<|im_start|>", _END: "<|im_end|>", NEWLINE: "\n"}
_GENERATION = [_START, crc32(b"assistant"), NEWLINE]

_SENTENCE = (
    "a steady hand keeps the tempo while every voice enters in turn and the phrase returns to its first note "
    "then rests so that all who listen may hear how one bar follows another without haste or delay"
)
WORDS: tuple[str, ...] = tuple(f" {word}" for word in _SENTENCE.split())
WORD_IDS: tuple[int, ...] = tuple(crc32(word.encode()) for word in _SENTENCE.split())
VOCABULARY_TOK = 1 << 32


def word(request: int, n: int) -> str:
    """The `n`-th token (from 1) that request number `request` is answered with: one word and the space before it."""
    return WORDS[(request + n) % len(WORDS)]


def word_id(request: int, n: int) -> int:
    """The id of `word(request, n)`: what `encode` gives for it."""
    return WORD_IDS[(request + n) % len(WORD_IDS)]


def output_token(sequence: Sequence, n: int) -> int:
    """The id of a sequence's `n`-th token, for the core; its id is the number of its request."""
    return word_id(sequence.id, n)


def encode(text: str) -> list[int]:
    """The token ids of plain text: one for each of its whitespace-separated words."""
    return list(map(crc32, text.encode(errors="surrogatepass").split()))


def encode_chat(messages: Iterable[tuple[str, str]], generation_prompt: bool = True) -> list[int]:
    """The token ids of a conversation of (role, text), the template's around each, and its opening of an answer."""
    ids: list[int] = []
    for role, text in messages:
        ids += (_START, crc32(role.encode(errors="surrogatepass")), NEWLINE)
        ids += map(crc32, text.encode(errors="surrogatepass").split())
        ids += (_END, NEWLINE)
    if generation_prompt:
        ids += _GENERATION
    return ids


def salted(ids: list[int], salt: str) -> list[int]:
    """Ids that share no prefix with the same prompt under another salt, or none: the first one is made different."""
    return [ids[0] + (((crc32(salt.encode(errors="surrogatepass")) >> 2) + 1) << 32), *ids[1:]]


class Vocabulary:
    """Words by their ids, as far as they are known: the engine's own, the template's, and those learned.

    It keeps at most `most` learned words, the first ones; an id that is none of these has no text.
    """

    def __init__(self, most: int = 1 << 16) -> None:
        known = [*_SENTENCE.split(), "assistant"]
        self._words = dict(zip(encode(" ".join(known)), known, strict=True)) | _SPECIAL
        self._room = most

    def learn(self, texts: Iterable[str]) -> None:
        """Remember the words of texts (of roles, too)."""
        for text in texts:
            for spelling in text.split():
                token = crc32(spelling.encode(errors="surrogatepass"))
                if self._room and token not in self._words:
                    self._words[token] = spelling
                    self._room -= 1

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What each id stands for; "" where that is unknown."""
        return [self._words.get(token, "") for token in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids: words with a space between them, the template's tokens without."""
        text, apart = "", False
        for token in ids:
            piece = self._words.get(token, "")
            is_word = token not in _SPECIAL
            text += f" {piece}" if piece and apart and is_word else piece
            apart = is_word and (apart or bool(piece))
        return text
