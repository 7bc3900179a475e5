from cadenza.engine.text import TEMPLATE_TOK_PER_MESSAGE, WORDS, count_chat, count_prompt, word


def test_a_prompt_counts_its_words() -> None:
    assert count_prompt("  one two\nthree\t four ") == 4
    assert count_prompt("") == 0


def test_a_chat_counts_words_and_the_template_of_each_message() -> None:
    assert count_chat(["be brief", "why is the sky blue"]) == 2 + 5 + 2 * TEMPLATE_TOK_PER_MESSAGE


def test_generated_tokens_are_single_words_that_need_no_escaping() -> None:
    assert all(said[0] == " " and said[1:].isascii() and said[1:].isalpha() for said in WORDS)
    text = "".join(word(7, n) for n in range(1, 101))
    assert count_prompt(text) == 100
    assert text == "".join(word(7, n) for n in range(1, 101))
