"""The word list keeps what the salt and the random source count on."""

from cadenza.prompts.words import WORDS


def test_1024_different_short_lower_case_words() -> None:
    assert len(WORDS) == len(set(WORDS)) == 1024
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) <= 8 for word in WORDS)
