"""A few words at the head of a prompt that make it new to the server's prefix cache.

Without them a sweep with a fixed seed measures a warm cache: vLLM saw TPOT 34 % lower and TTFT 49 times lower.
"""

from cadenza.prompts.words import WORDS

# One half of the list says "more digits follow", the other "this was the last": each number ends itself.
_BASE = len(WORDS) // 2


def salt(seed: int, point: int, index: int) -> str:
    """Words that encode (seed, point, index) one to one; three or four in practice, the fastest-changing first.

    No salt is the beginning of another. `point` and `index` are not negative; `seed` is any integer.
    """
    signed = 2 * seed if seed >= 0 else -2 * seed - 1
    return " ".join(word for number in (index, point, signed) for word in _spell(number))


def _spell(number: int) -> list[str]:
    """`number` in base 512, lowest digit first."""
    words = []
    while number >= _BASE:
        number, digit = divmod(number, _BASE)
        words.append(WORDS[digit])
    return [*words, WORDS[_BASE + number]]
