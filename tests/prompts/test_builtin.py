"""The built-in prompts are many, short and different."""

from cadenza.prompts.builtin import PROMPTS, ROWS


def test_two_dozen_different_short_prompts() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) == 24
    assert all(20 <= len(prompt) <= 120 for prompt in PROMPTS)
    assert all(len(row.messages) == 1 and row.messages[0].role == "user" for row in ROWS)


def test_no_two_begin_alike() -> None:
    assert len({prompt[:16] for prompt in PROMPTS}) == len(PROMPTS)
